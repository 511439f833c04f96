/** Lines of a log: where they begin in a stream of bytes, and streams of several ranks merged. */

const LINE_FEED = 10;

/** Where the lines of a stream begin. Grows with the bytes that are appended in order. */
export class LineIndex {
  private starts = new Float64Array(1024);
  private size = 1; // the first line begins at 0
  length = 0; // bytes so far

  /** Lines so far, the unfinished last one included if it has bytes. */
  get count(): number {
    return this.startOf(this.size - 1) === this.length ? this.size - 1 : this.size;
  }

  append(bytes: Uint8Array): void {
    for (let at = bytes.indexOf(LINE_FEED); at >= 0; at = bytes.indexOf(LINE_FEED, at + 1)) {
      if (this.size === this.starts.length) {
        const larger = new Float64Array(this.size * 2);
        larger.set(this.starts);
        this.starts = larger;
      }
      this.starts[this.size] = this.length + at + 1;
      this.size += 1;
    }
    this.length += bytes.length;
  }

  /** Returns begin and end of a line in bytes, without its line feed. */
  rangeOf(line: number): [number, number] {
    const end = line + 1 < this.size ? this.startOf(line + 1) - 1 : this.length;
    return [this.startOf(line), end];
  }

  private startOf(line: number): number {
    return this.starts[line] ?? 0;
  }
}

export interface MergedLine {
  source: string;
  text: string;
}

/** A line of a progress bar that grows beyond this is cut to its newest states. */
const MAX_OPEN_LINE = 1 << 16;

/** Lines of several sources in the order of their arrival. Bytes of a source without a line feed are a line of
 *  their own, which grows. */
export class MergedLines {
  readonly lines: MergedLine[] = [];
  size = 0; // characters
  private readonly sources = new Map<string, { decoder: TextDecoder; open: MergedLine | null }>();

  append(source: string, bytes: Uint8Array): void {
    let state = this.sources.get(source);
    if (!state) {
      state = { decoder: new TextDecoder(), open: null };
      this.sources.set(source, state);
    }
    const text = state.decoder.decode(bytes, { stream: true });
    this.size += text.length;
    const parts = text.split("\n");
    parts.forEach((part, index) => {
      if (state.open) {
        state.open.text = shorten(state.open.text + part);
      } else if (part !== "" || index < parts.length - 1) {
        state.open = { source, text: part };
        this.lines.push(state.open);
      }
      if (index < parts.length - 1) {
        state.open = null;
      }
    });
  }
}

function shorten(text: string): string {
  if (text.length <= MAX_OPEN_LINE) {
    return text;
  }
  const turn = text.indexOf("\r", text.length - MAX_OPEN_LINE / 2);
  return turn >= 0 ? text.slice(turn + 1) : text;
}

const ERROR =
  /Traceback \(most recent call last\)|^\s*(?:[\w.]+\.)?\w*(?:Error|Exception)\b\s*(?::|$)|\b(?:FATAL|CRITICAL|ERROR)\b|Segmentation fault|out of memory/;

/** Whether a line looks like the beginning of an error. */
export function isErrorLine(text: string): boolean {
  return ERROR.test(text);
}
