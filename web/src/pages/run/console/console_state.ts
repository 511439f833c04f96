/** What a console of a run is doing. */
export type ConsoleState =
  | { phase: "opening" }
  | { phase: "open" }
  | { phase: "ended"; text: string }
  | { phase: "failed"; error: unknown };

/** Returns the end of a console in words. `fields`: of its last message. */
export function endText(subject: string, fields: Record<string, unknown>): string {
  const { code, reason } = fields;
  const why = typeof reason === "string" && reason !== "" ? `: ${reason}` : "";
  return `${subject} has ended${typeof code === "number" ? ` with exit code ${code}` : ""}${why}.`;
}
