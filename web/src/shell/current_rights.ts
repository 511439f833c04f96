/** The rights of the session while its pages are open: an administrator of a queue may stop being one. */
import { useEffect } from "preact/hooks";
import { followEvents, isGap, isStreaming } from "@/api/events";
import { isSignedOut, loadSession } from "@/api/session";

const POLL_MS = 10_000; // without a stream of events

/** Reads the session again when the queues change, so that no page offers what the server would refuse. */
export function useCurrentRights(user: string | undefined): void {
  useEffect(() => {
    if (user === undefined) {
      return;
    }
    const load = () => {
      if (!isSignedOut.value) {
        loadSession().catch(() => undefined); // away: the pages say so
      }
    };
    const stop = followEvents((event) => {
      if (event.kind === "queues" || isGap(event)) {
        load();
      }
    });
    const timer = window.setInterval(() => {
      if (!isStreaming.value && !document.hidden) {
        load();
      }
    }, POLL_MS);
    return () => {
      stop();
      window.clearInterval(timer);
    };
  }, [user]);
}
