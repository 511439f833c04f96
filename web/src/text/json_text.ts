/** How JSON is shown. */

/** Returns JSON with one value a line; null for text that is no JSON, or that would change: numbers with more
 *  digits than JavaScript keeps. */
export function formatJson(text: string): string | null {
  if (/\d{16,}/.test(text)) {
    return null;
  }
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}
