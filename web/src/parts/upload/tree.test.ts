import { describe, expect, it, vi } from "vitest";
import { ApiError } from "@/api/client";
import { encodePack, packTree, repeated } from "./tree";
import { hashBytes } from "./hash_bytes";

const hash = (bytes: ArrayBuffer) => Promise.resolve(hashBytes(new Uint8Array(bytes)));

describe("a tree", () => {
  it("has the digest that hop run computes", async () => {
    const files = [
      { path: "b.py", file: new Blob(["print(1)\n"]) },
      { path: "a/ü.txt", file: new Blob([]) },
    ];
    const tree = await packTree(files, hash, () => undefined, new AbortController().signal);
    const chunk = hashBytes(new TextEncoder().encode("print(1)\n"));
    expect(new TextDecoder().decode(tree.manifest)).toBe(
      `{"files":[["a/ü.txt",0,0,[]],["b.py",9,0,["${chunk}"]]],"folders":[],"links":[],"v":1}`,
    );
    expect([...tree.blobs.keys()]).toEqual([chunk, tree.digest]);
    const pack = new Uint8Array(
      await (await encodePack([[chunk, new Blob(["print(1)\n"]), "b.py"]])).arrayBuffer(),
    );
    expect(pack.length).toBe(32 + 8 + 9);
    expect(pack[32]).toBe(9);
  });

  it("has every file once, whichever is read first", async () => {
    const files = Array.from({ length: 50 }, (_, at) => ({
      path: `${at}.txt`,
      file: new Blob([`${at % 7}`]),
    }));
    const tree = await packTree(files, hash, () => undefined, new AbortController().signal);
    const { files: entries } = JSON.parse(new TextDecoder().decode(tree.manifest)) as { files: [string][] };
    expect(new Set(entries.map(([path]) => path)).size).toBe(50);
    expect(tree.blobs.size).toBe(7 + 1);
  });

  it("is hashed with BLAKE3", () => {
    expect(hashBytes(new Uint8Array())).toBe(
      "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    );
  });
});

it("a file that changes meanwhile is named", async () => {
  const changed = { size: 1, arrayBuffer: () => Promise.reject(new Error("NotReadableError")) } as Blob;
  await expect(encodePack([["0".repeat(64), changed, "a/b.txt"]])).rejects.toThrow(
    "`a/b.txt` cannot be read",
  );
});

describe("a request of an upload", () => {
  const { signal } = new AbortController();
  const away = new ApiError(0, "server_unavailable", "the server does not answer");

  it("is sent again while the server is away", async () => {
    const send = vi.fn().mockRejectedValueOnce(away).mockRejectedValueOnce(away).mockResolvedValue("stored");
    expect(await repeated(send, signal, [0, 0, 0])).toBe("stored");
    await expect(repeated(() => Promise.reject(away), signal, [0])).rejects.toBe(away);
  });

  it("is not sent again once it was refused", async () => {
    const send = vi.fn().mockRejectedValue(new ApiError(507, "quota", "no room"));
    await expect(repeated(send, signal, [0, 0])).rejects.toThrow("no room");
    expect(send).toHaveBeenCalledTimes(1);
  });
});
