import { describe, expect, it } from "vitest";
import { formatAge, formatBytes, formatCount, formatDuration, formatNumber } from "./format";

describe("formats", () => {
  it("writes sizes with three digits", () => {
    expect([0, 1023, 1024, 1536, 1024 ** 2 - 1, 1.21 * 1024 ** 3].map(formatBytes)).toEqual([
      "0 B",
      "1023 B",
      "1 KiB",
      "1.5 KiB",
      "1 MiB",
      "1.21 GiB",
    ]);
  });

  it("writes durations with two units", () => {
    expect([-1, 0.04, 9.96, 59.6, 61, 7500, 90000].map(formatDuration)).toEqual([
      "0.0s",
      "0.0s",
      "10s",
      "1m 00s",
      "1m 01s",
      "2h 05m",
      "1d 01h",
    ]);
    expect(formatDuration(Number.NaN)).toBe("–");
  });

  it("writes counts with one or many of a noun", () => {
    expect([0, 1, 2, 1200].map((count) => formatCount(count, "file"))).toEqual([
      "0 files",
      "1 file",
      "2 files",
      "1,200 files",
    ]);
    expect([1, 2].map((count) => formatCount(count, "run is", "runs are"))).toEqual([
      "1 run is",
      "2 runs are",
    ]);
  });

  it("writes ages in one unit", () => {
    const now = Date.parse("2026-01-02T00:00:00Z");
    expect(formatAge("2026-01-01T23:57:01Z", now)).toBe("2m ago");
    expect(formatAge("2026-01-03T00:00:00Z", now)).toBe("just now");
  });

  it("writes numbers shortly and keeps what JSON cannot hold", () => {
    expect([0.1 + 0.2, 12, 123456.7, 0.0000123, "NaN", "-Infinity"].map(formatNumber)).toEqual([
      "0.3",
      "12",
      "123457",
      "1.230e-5",
      "NaN",
      "−∞",
    ]);
  });
});
