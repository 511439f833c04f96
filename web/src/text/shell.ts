/** Texts for a shell. */

/** Returns a word so that a POSIX shell reads exactly it. */
export function quoteWord(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Returns the command that runs a run again: same code, data versions, environment and parameters. */
export function reproduceCommand(run: { name: string }): string {
  return `hop fork ${quoteWord(run.name)}`;
}

/** Returns a command line as one would type it. */
export function commandText(command: readonly string[]): string {
  return command.map(quoteWord).join(" ");
}

/** Returns the value that a person typed for a parameter, with the type of its current value. A text that
 *  has not that type is kept as text, for the server to refuse. */
export function parseParam(
  text: string,
  current: string | number | boolean | null | undefined,
): string | number | boolean | null {
  const trimmed = text.trim();
  if (typeof current === "string") {
    return text;
  }
  if (trimmed === "null" || trimmed === "None") {
    return null;
  }
  if (/^(true|false)$/i.test(trimmed)) {
    return trimmed.toLowerCase() === "true";
  }
  if (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(trimmed) && Number.isFinite(Number(trimmed))) {
    return Number(trimmed);
  }
  return text;
}
