// @vitest-environment node
import { execFileSync } from "node:child_process";
import { expect, it } from "vitest";
import { tarParts } from "./tar";

const bytes = (text: string) => new TextEncoder().encode(text);
const READ = `
import io, json, sys, tarfile
with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read()), mode="r:") as archive:
    print(json.dumps([[m.name, m.mtime, archive.extractfile(m).read().decode()] for m in archive]))
`;

it("is an archive that other programs read", () => {
  const long = `${"folder/".repeat(20)}weights.pt`;
  const texts: [string, string][] = [
    ["model.pt", "a".repeat(512)],
    ["empty", ""],
    [long, "b"],
    ["модель.pt", "c".repeat(700)],
  ];
  const parts = tarParts(
    texts.map(([path, text]) => ({ path, bytes: bytes(text) })),
    1_700_000_000.5,
  );
  const read = execFileSync("python3", ["-c", READ], { input: Buffer.concat(parts) }).toString();
  expect(JSON.parse(read)).toEqual(texts.map(([path, text]) => [path, 1_700_000_000, text]));
});
