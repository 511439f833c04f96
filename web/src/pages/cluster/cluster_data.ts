/** Reads what the tabs of the cluster share, and where they lead. */
import { api, data, type Schemas } from "@/api/client";
import { allPages } from "@/api/runs";

export function nodeHref(id: string): string {
  return `/cluster?tab=nodes&node=${encodeURIComponent(id)}`;
}

export function queueHref(name: string): string {
  return `/cluster?tab=queues&queue=${encodeURIComponent(name)}`;
}

/** What runs hold now, on all nodes or on one. */
export async function readAllocations(node?: string): Promise<Schemas["AllocationOut"][]> {
  const pages = await allPages<Schemas["AllocationsOut"]>((after) =>
    data(
      api.GET("/api/v1/allocations", {
        params: { query: { ...(node === undefined ? {} : { node }), ...(after === null ? {} : { after }) } },
      }),
    ),
  );
  return pages.flatMap((page) => page.allocations);
}

const MAX_SPANS = 3000; // more do not fit into a picture

export interface TimelineData {
  spans: Schemas["SpanOut"][];
  isCut: boolean; // there are older attempts that are not shown
}

export async function readTimeline(query: {
  since: string;
  until: string;
  node?: string;
  queue?: string;
}): Promise<TimelineData> {
  const spans: Schemas["SpanOut"][] = [];
  let after: string | null = null;
  do {
    const page: Schemas["TimelineOut"] = await data(
      api.GET("/api/v1/timeline", { params: { query: { ...query, ...(after === null ? {} : { after }) } } }),
    );
    spans.push(...page.spans);
    after = page.next;
  } while (after !== null && spans.length < MAX_SPANS);
  return { spans, isCut: after !== null };
}

export async function readCalendar(since: string, until: string): Promise<Schemas["OccurrenceOut"][]> {
  const pages = await allPages<Schemas["CalendarOut"]>((after) =>
    data(
      api.GET("/api/v1/calendar", {
        params: { query: { since, until, ...(after === null ? {} : { after }) } },
      }),
    ),
  );
  return pages.flatMap((page) => page.occurrences);
}
