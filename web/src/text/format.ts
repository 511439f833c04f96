/** How values are written. The words are those of `hop ps` and `hop info`. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

/** Returns a size with three digits: `1.21 GiB`. */
export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : Number(value.toPrecision(3))} ${UNITS[unit]}`;
}

/** Returns a duration with its two largest units: `2h 05m`. */
export function formatDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) {
    return "–";
  }
  if (seconds < 9.95) {
    return `${Math.max(0, seconds).toFixed(1)}s`;
  }
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
  ];
  const two = (value: number) => String(value).padStart(2, "0");
  if (days > 0) {
    return `${days}d ${two(hours)}h`;
  }
  if (hours > 0) {
    return `${hours}h ${two(minutes)}m`;
  }
  return minutes > 0 ? `${minutes}m ${two(whole % 60)}s` : `${whole}s`;
}

/** Returns how long ago a time is, in one unit: `3m ago`. */
export function formatAge(at: string, now: number): string {
  const seconds = Math.max(0, (now - Date.parse(at)) / 1000);
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["m", 60],
  ] as const) {
    if (seconds >= size) {
      return `${Math.floor(seconds / size)}${unit} ago`;
    }
  }
  return "just now";
}

/** Returns a number with at most six significant digits, and the API's texts for infinities and NaN. */
export function formatNumber(value: number | string): string {
  if (typeof value === "string" || !Number.isFinite(value)) {
    return { Infinity: "∞", "-Infinity": "−∞" }[String(value)] ?? String(value);
  }
  if (Number.isInteger(value) && Math.abs(value) < 1e15) {
    return String(value);
  }
  const size = Math.abs(value);
  return size < 1e-4 || size >= 1e6 ? value.toExponential(3) : String(Number(value.toPrecision(6)));
}

const WHOLE = new Intl.NumberFormat("en"); // `toLocaleString` makes one at each call

/** Returns a number with its noun: `1 file`, `1,200 files`. `many`: where the plural is not the noun with an s. */
export function formatCount(count: number, noun: string, many = `${noun}s`): string {
  return `${WHOLE.format(count)} ${count === 1 ? noun : many}`;
}
