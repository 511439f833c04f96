import { useEffect, useState } from "preact/hooks";
import { usePolled } from "@/api/polling";
import type { TreeFile } from "@/api/runs";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { imageType, previewText } from "@/text/file_kind";
import { parseCsv } from "@/text/csv";
import { formatBytes } from "@/text/format";
import styles from "./files_tab.module.css";

const MAX_TEXT = 300_000; // characters
const MAX_PREVIEW_BYTES = 64 << 20; // of files that are read whole

/** A picture, a table, or the text of a file. Pages and SVG are text: nothing of a file ever runs. */
export function FilePreview({ file }: { file: TreeFile }) {
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
  const text = previewText(bytes, MAX_TEXT);
  if (text === null) {
    return <Empty title="No preview: the file is neither text nor a picture" />;
  }
  const isCut = isLarge || bytes.length > MAX_TEXT;
  return (
    <>
      {/\.(csv|tsv)$/i.test(file.path) ? <Table text={text} /> : <pre tabIndex={0}>{text}</pre>}
      {isCut && (
        <p class={styles["quiet"]}>
          The beginning of {formatBytes(file.sizeBytes)}; download it to read all.
        </p>
      )}
    </>
  );
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

function Table({ text }: { text: string }) {
  const csv = parseCsv(text);
  return (
    <>
      <div class={styles["scroll"]} tabIndex={0}>
        <table>
          <thead>
            <tr>
              {csv.header.map((name, index) => (
                <th key={index}>{name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {csv.rows.map((row, number) => (
              <tr key={number}>
                {row.map((field, index) => (
                  <td key={index}>{field}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {csv.isTruncated && <p class={styles["quiet"]}>The first {csv.rows.length} rows</p>}
    </>
  );
}
