import { expect, test } from "vitest";
import { imageType, previewText } from "./file_kind";

const bytes = (text: string) => new TextEncoder().encode(text);

test("pictures are known by their content, and SVG is none", () => {
  expect(imageType(new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 1]))).toBe("image/png");
  expect(imageType(bytes("RIFFxxxxWEBP"))).toBe("image/webp");
  expect(imageType(bytes("RIFFxxxxWAVE"))).toBeNull();
  expect(imageType(bytes("<svg onload='alert(1)'>"))).toBeNull();
  expect(imageType(bytes(""))).toBeNull();
});

test("text is cut, also inside a character; binary files are no text", () => {
  expect(previewText(bytes("<script>"), 100)).toBe("<script>");
  expect(previewText(bytes("aüb"), 2)).toBe("a");
  expect(previewText(new Uint8Array([65, 0, 66]), 100)).toBeNull();
  expect(previewText(new Uint8Array([0xff, 0xfe, 0xfd, 65]), 100)).toBeNull();
});
