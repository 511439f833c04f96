/** Completes the name that is typed at the end of a filter. */

const MAX_SUGGESTIONS = 8;

/** Returns filters in which the last word is a full name; none if no known name continues it. */
export function completeName(text: string, names: readonly string[]): string[] {
  const word = /[^\s()=<>~!,"'`]+$/.exec(text)?.[0] ?? "";
  if (word === "") {
    return [];
  }
  const typed = word.toLowerCase();
  const rank = (name: string): number => {
    const lower = name.toLowerCase();
    if (lower === typed) {
      return -1; // complete
    }
    return lower.startsWith(typed) ? 2 : lower.slice(lower.indexOf(".") + 1).startsWith(typed) ? 1 : 0;
  };
  if (names.some((name) => rank(name) === -1)) {
    return [];
  }
  return names
    .filter((name) => rank(name) > 0)
    .sort((a, b) => rank(b) - rank(a))
    .slice(0, MAX_SUGGESTIONS)
    .map((name) => text.slice(0, text.length - word.length) + name);
}
