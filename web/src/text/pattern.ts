/** Returns what finds names by a regular expression, in any case of letters; null if it is not one. */
export function compilePattern(text: string): ((name: string) => boolean) | null {
  try {
    const pattern = new RegExp(text, "i");
    return (name) => pattern.test(name);
  } catch {
    return null;
  }
}
