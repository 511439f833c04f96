import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { usePolled } from "@/api/polling";
import type { TreeFile } from "@/api/runs";
import { parseCsv } from "@/text/csv";
import { imageType, previewText } from "@/text/file_kind";
import { formatBytes, formatCount } from "@/text/format";
import { formatJson } from "@/text/json_text";
import { lineOf } from "@/text/line_address";
import {
  cutWindow,
  LineCounter,
  WINDOW_BYTES,
  windowCount,
  windowRange,
  windowStart,
  type ReadPart,
} from "@/text/line_window";
import { shownName } from "@/text/shown_name";
import { Button } from "./button";
import { CodeText } from "./code_text";
import { Empty, ErrorNotice, Loading } from "./notices";
import { TablePreview } from "./table_preview";
import styles from "./file_preview.module.css";

const MAX_TEXT = 300_000; // characters
const MAX_TABLE_TEXT = 4_000_000; // characters of a table, of which only the rows in sight are drawn
const MAX_ROWS = 20_000;
const MAX_PREVIEW_BYTES = 64 << 20; // of files that are read whole
const PICTURE = /\.(png|jpe?g|gif|webp)$/i;
const TABLE = /\.(csv|tsv)$/i;
const AUDIO = /\.(wav|mp3|flac|ogg)$/i;
const VIDEO = /\.(mp4|webm)$/i;

/** A picture, a player, a table, or the text of a file. Pages and SVG are text: nothing of a file ever runs. */
export function FilePreview({ file }: { file: TreeFile }) {
  if (file.address !== undefined && AUDIO.test(file.path)) {
    return <audio controls preload="metadata" src={file.address} class={styles["player"]} />;
  }
  if (file.address !== undefined && VIDEO.test(file.path)) {
    return <video controls preload="metadata" src={file.address} class={styles["player"]} />;
  }
  const { part } = file;
  return part && file.sizeBytes > 2 * WINDOW_BYTES && !PICTURE.test(file.path) ? (
    <PagedText file={file} part={part} />
  ) : (
    <WholeFile file={file} />
  );
}

function WholeFile({ file }: { file: TreeFile }) {
  const isLarge = file.sizeBytes > MAX_PREVIEW_BYTES;
  const { data: bytes, error } = usePolled(
    `preview ${file.path} ${file.sizeBytes}`,
    isLarge ? file.head : file.read,
    () => null,
  );
  if (bytes === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const type = imageType(bytes);
  if (type !== null && !isLarge) {
    return <Picture bytes={bytes} type={type} name={file.path} />;
  }
  const maxText = TABLE.test(file.path) ? MAX_TABLE_TEXT : MAX_TEXT;
  const text = previewText(bytes, maxText);
  if (text === null) {
    return <Empty title="No preview: the file is neither text nor a picture" />;
  }
  const isCut = isLarge || bytes.length > maxText;
  const json = /\.json$/i.test(file.path) && !isCut ? formatJson(text) : null;
  return (
    <>
      {TABLE.test(file.path) ? (
        <Table name={file.path} text={text} maxRows={file.part ? Infinity : MAX_ROWS} />
      ) : (
        <CodeText text={json ?? text} label={`text of ${shownName(file.path)}`} />
      )}
      {isCut && (
        <p class={styles["quiet"]}>
          The beginning of {formatBytes(file.sizeBytes)}; download it to read all.
        </p>
      )}
    </>
  );
}

/** A long text, a part at a time. A table keeps its header in each part. */
function PagedText({ file, part }: { file: TreeFile; part: NonNullable<TreeFile["part"]> }) {
  const [index, setIndex] = useState(0);
  const count = windowCount(file.sizeBytes);
  const isTable = TABLE.test(file.path);
  const { data: parts, error } = usePolled(
    `part ${index} of ${file.path} ${file.sizeBytes}`,
    async () => {
      const read = async (number: number) => {
        const { begin, end } = windowRange(number, file.sizeBytes);
        const bytes = await part(begin, end);
        return { start: begin + windowStart(bytes, number), bytes: cutWindow(bytes, number) };
      };
      const first = index > 0 && isTable ? read(0) : null;
      const { start, bytes } = await read(index);
      return { index, start, shown: bytes, first: (await first)?.bytes ?? null };
    },
    () => null,
  );
  const [latest, setLatest] = useState(parts);
  useEffect(() => {
    if (parts !== null) {
      setLatest(parts);
    }
  }, [parts]);
  const current = parts ?? latest; // the part before stays until the next one is there
  const {
    firstLine,
    unreadBytes,
    count: countLines,
  } = useFirstLine(file, part, isTable ? null : current, setIndex);
  if (current === null || error !== null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const body = previewText(current.shown, current.shown.length + 1);
  if (body === null) {
    return <Empty title="No preview: the file is neither text nor a picture" />;
  }
  const header = current.first === null ? "" : (previewText(current.first, MAX_TEXT) ?? "");
  const line = header.slice(0, header.indexOf("\n") + 1);
  return (
    <>
      <div class={styles["parts"]}>
        <Button disabled={index === 0} onClick={() => setIndex(index - 1)} aria-label="previous part">
          ←
        </Button>
        <label>
          Part{" "}
          <input
            type="number"
            min="1"
            max={count}
            value={index + 1}
            onChange={(event) => {
              const wanted = Math.round(Number(event.currentTarget.value)) || 1;
              setIndex(Math.max(0, Math.min(count - 1, wanted - 1)));
            }}
          />
        </label>
        <span>
          of {count}, {formatBytes(WINDOW_BYTES)} each
        </span>
        {unreadBytes > 0 && (
          <Button onClick={countLines}>Number the lines (reads {formatBytes(unreadBytes)})</Button>
        )}
        <Button disabled={index === count - 1} onClick={() => setIndex(index + 1)} aria-label="next part">
          →
        </Button>
      </div>
      {isTable ? (
        <Table name={file.path} text={line + body} maxRows={Infinity} />
      ) : (
        <CodeText text={body} label={`text of ${shownName(file.path)}`} first={firstLine} />
      )}
    </>
  );
}

/** Returns the number of the first line of a part, null while it is not known, and opens the part of the line that
 *  the address names. `unreadBytes`: what `count` has to read for it, 0 where that is done without a question. */
function useFirstLine(
  file: TreeFile,
  part: ReadPart,
  shown: { start: number } | null,
  onPart: (index: number) => void,
): { firstLine: number | null; unreadBytes: number; count: () => void } {
  const place = file.address ?? file.path;
  const counter = useMemo(() => new LineCounter(part), [place, file.sizeBytes]);
  const [search] = useSearchParams();
  const addressed = useRef(lineOf(search)); // when the file was opened; later ones are clicks on a number
  const [known, setKnown] = useState<{ start: number; counter: LineCounter; line: number } | null>(null);
  const [isAsked, setAsked] = useState(false);
  const start = shown?.start ?? null;
  const unreadBytes = start === null ? 0 : counter.unreadBytes(start);
  const isAllowed = isAsked || unreadBytes <= MAX_PREVIEW_BYTES;
  useEffect(() => {
    const line = addressed.current;
    if (line === null || line === 1 || shown === null) {
      return;
    }
    addressed.current = null;
    const stop = new AbortController();
    counter
      .offsetOf(line, Math.min(file.sizeBytes, MAX_PREVIEW_BYTES), stop.signal)
      .then((offset) => {
        if (offset !== null && !stop.signal.aborted) {
          onPart(Math.floor(offset / WINDOW_BYTES));
        }
      })
      .catch(() => undefined); // the file can be read without it
    return () => stop.abort();
  }, [counter, shown === null]);
  useEffect(() => {
    if (start === null || !isAllowed) {
      return undefined;
    }
    const stop = new AbortController();
    counter
      .lineAt(start, stop.signal)
      .then((line) => {
        if (!stop.signal.aborted) {
          setKnown({ start, counter, line });
        }
      })
      .catch(() => undefined); // the text stays without numbers
    return () => stop.abort();
  }, [counter, start, isAllowed]);
  const isKnown = known !== null && known.start === start && known.counter === counter;
  return {
    firstLine: isKnown ? known.line : null,
    unreadBytes: isKnown || isAllowed ? 0 : unreadBytes,
    count: () => setAsked(true),
  };
}

function Picture({ bytes, type, name }: { bytes: Uint8Array<ArrayBuffer>; type: string; name: string }) {
  const [address, setAddress] = useState<string | null>(null);
  useEffect(() => {
    const created = URL.createObjectURL(new Blob([bytes], { type }));
    setAddress(created);
    return () => URL.revokeObjectURL(created);
  }, [bytes, type]);
  return address === null ? <Loading /> : <img src={address} alt={name} class={styles["picture"]} />;
}

function Table({ name, text, maxRows }: { name: string; text: string; maxRows: number }) {
  const csv = useMemo(() => parseCsv(text, maxRows), [text, maxRows]);
  return (
    <TablePreview
      label={name}
      header={csv.header}
      rows={csv.rows}
      note={csv.isTruncated ? `The first ${formatCount(csv.rows.length, "row")}` : null}
    />
  );
}
