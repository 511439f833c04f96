/** Parts of the page that are loaded when they are first shown. */
import type { FunctionComponent } from "preact";
import { lazy as lazyOnce } from "preact/compat";
import { loadSession } from "@/api/session";
import { ApiError } from "@/api/client";

const RETRY_MS = 1000;
const RELOADED = "hopyard.reloaded"; // the time of the last reload, so that a file that is absent for good ends it
const RELOAD_GAP_MS = 60_000;

async function untilServerAnswers(): Promise<void> {
  for (;;) {
    try {
      await loadSession();
      return;
    } catch (error) {
      if (!(error instanceof ApiError) || (error.status !== 0 && error.status < 500)) {
        throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** Loads a module. While the server is away, it waits; where another version of the server no longer has the file,
 *  the page is loaded again. Throws what the import throws if that did not help. */
export async function loadPart<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch {
    await untilServerAnswers();
  }
  try {
    return await load();
  } catch (error) {
    const now = Date.now();
    if (now - Number(sessionStorage.getItem(RELOADED) ?? 0) < RELOAD_GAP_MS) {
      throw error;
    }
    sessionStorage.setItem(RELOADED, String(now));
    location.reload();
    return new Promise(() => undefined);
  }
}

export type LazyComponent<Props> = FunctionComponent<Props> & { startLoading: () => void };

/** As `lazy` of Preact, for a server that may be away at that moment. `startLoading`: before it is first shown. */
export function lazy<Props>(load: () => Promise<FunctionComponent<Props>>): LazyComponent<Props> {
  let started: Promise<FunctionComponent<Props>> | null = null;
  const start = () => (started ??= loadPart(load));
  const component: FunctionComponent<Props> = lazyOnce(async () => ({ default: await start() }));
  return Object.assign(component, {
    startLoading: () => {
      start().catch(() => undefined); // shown where the component is
    },
  });
}
