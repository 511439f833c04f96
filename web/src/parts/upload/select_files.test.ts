import { describe, expect, it } from "vitest";
import { GitIgnore } from "./git_ignore";
import { belowFolder, CODE_RULES, DATA_RULES, selectFiles } from "./select_files";

const file = (path: string, text = "") => ({ path, file: new Blob([text]) });

describe("selected files", () => {
  it("are those that hop run packs", async () => {
    const { files, leftOut } = await selectFiles(
      [
        file("train.py"),
        file(".gitignore", "*.bin\n/out/\n!keep.bin\n# comment\n"),
        file("sub/.hopignore", "!a.bin\nnotes\n"),
        file("a.bin"),
        file("keep.bin"),
        file("sub/a.bin"),
        file("sub/notes/x.txt"),
        file("out/x.txt"),
        file("sub/out/x.txt"),
        file(".venv/lib/x.py"),
        file(".git/config"),
        file("id_rsa"),
        file("x.pyc"),
        file("bad\u0001.txt"),
      ],
      CODE_RULES,
    );
    expect(files.map(({ path }) => path)).toEqual([
      "train.py",
      ".gitignore",
      "sub/.hopignore",
      "keep.bin",
      "sub/a.bin",
      "sub/out/x.txt",
    ]);
    expect(leftOut.map(({ path }) => path)).toEqual([
      "a.bin",
      "sub/notes/",
      "out/",
      ".venv/",
      ".git/",
      "id_rsa",
      "x.pyc",
      "bad\u0001.txt",
    ]);
    expect(leftOut[0]?.reason).toBe(".gitignore, line 1");
  });

  it("of data are all but those of .hopignore", async () => {
    const { files, leftOut } = await selectFiles(
      [
        file(".gitignore", "*.png\n"),
        file(".hopignore", "drafts/\n"),
        file("a.png"),
        file("x.pyc"),
        file("drafts/b.png"),
        file("sub/.DS_Store"),
        file("sub/.git/config"),
      ],
      DATA_RULES,
    );
    expect(files.map(({ path }) => path)).toEqual([".gitignore", ".hopignore", "a.png", "x.pyc"]);
    expect(leftOut.map(({ path }) => path)).toEqual(["drafts/", "sub/.DS_Store", "sub/.git/"]);
    await expect(selectFiles([file("a\\b.png")], DATA_RULES)).rejects.toThrow("a backslash");
  });

  it("stand below the folder that was chosen", () => {
    const { name, files } = belowFolder([file("code/a.py"), file("code/b/c.py")]);
    expect([name, files.map(({ path }) => path)]).toEqual(["code", ["a.py", "b/c.py"]]);
    expect(belowFolder([file("a.py")]).name).toBe("");
  });
});

describe("git's patterns", () => {
  it.each([
    ["*.py", "a/b.py", true],
    ["/b.py", "a/b.py", false],
    ["a/**/c", "a/x/y/c", true],
    ["a/**/c", "a/c", true],
    ["a/*/c", "a/x/y/c", false],
    ["**/c", "x/c", true],
    ["[a-c].txt", "b.txt", true],
    ["[!a-c].txt", "b.txt", false],
    ["[[:digit:]]*", "7x", true],
    ["a\\*", "a*", true],
    ["a ", "a", true],
    ["[", "[", false],
    ["a?b", "aüb", true],
  ])("%s and %s", (pattern, path, matches) => {
    expect(new GitIgnore(pattern).match(path, false) !== null).toBe(matches);
  });
});
