/** Returns where a login came from. The server writes `uid 1000` for a program of its own machine. */
export function addressText(address: string): string {
  const uid = /^uid (\d+)$/.exec(address)?.[1];
  return uid !== undefined ? `the server's machine (user ID ${uid})` : address || "unknown";
}
