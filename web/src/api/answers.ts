/** Whether the server answers, and which time it has: as its answers show. */
import { signal } from "@preact/signals";

const SILENT_MS = 10_000; // an answer that takes so long, while nothing else comes either
const CHECK_MS = 1000;
const TOLERATED_MS = 5000; // a difference of clocks that no page shows

/** Whether the newest request has failed, or waits for long while nothing comes from the server. */
export const isAway = signal(false);

const waiting = new Set<{ since: number }>();
let heardAt = 0;
let timer = 0;
let aheadMs = 0;

function check(): void {
  const oldest = Math.min(...[...waiting].map(({ since }) => since));
  if (waiting.size === 0) {
    window.clearInterval(timer);
    timer = 0;
  } else if (performance.now() - Math.max(oldest, heardAt) > SILENT_MS) {
    isAway.value = true;
  }
}

/** Notes that something came from the server. */
export function noteAnswer(): void {
  heardAt = performance.now();
  isAway.value = false;
}

/** Notes whether an answer comes. For one that may take long, such as that of an upload. */
export async function noted(answer: Promise<Response>): Promise<Response> {
  try {
    const response = await answer;
    noteAnswer();
    noteDate(response.headers);
    return response;
  } catch (error) {
    if (!(error instanceof DOMException && error.name === "AbortError")) {
      isAway.value = true;
    }
    throw error;
  }
}

/** Notes whether an answer comes, and also that it is late. */
export async function watched(answer: Promise<Response>): Promise<Response> {
  const entry = { since: performance.now() };
  waiting.add(entry);
  timer ||= window.setInterval(check, CHECK_MS);
  try {
    return await noted(answer);
  } finally {
    waiting.delete(entry);
  }
}

/** Takes the server's time from a response that is not from a cache. */
export function noteDate(headers: Headers, now: number = Date.now()): void {
  const at = Date.parse(headers.get("Date") ?? "");
  if (Number.isFinite(at) && /no-cache|no-store/.test(headers.get("Cache-Control") ?? "")) {
    aheadMs = Math.abs(at - now) > TOLERATED_MS ? at - now : 0;
  }
}

/** The time of the server in milliseconds: what its times are compared with. This machine's clock may be wrong. */
export function serverNow(): number {
  return Date.now() + aheadMs;
}
