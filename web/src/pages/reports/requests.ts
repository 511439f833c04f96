/** Requests about reports. */
import { api, data, type Schemas } from "@/api/client";
import type { Block, Content, Report } from "./blocks";
import type { ReportApi } from "./session";

export type ReportSummary = Schemas["ReportSummaryOut"];
const path = (report: string) => ({ params: { path: { report } } });

export const reportApi: ReportApi = {
  get: (id) => data(api.GET("/api/v1/reports/{report}", path(id))),
  put: (id, body) => data(api.PUT("/api/v1/reports/{report}", { ...path(id), body })),
};

export function createReport(content: Partial<Content>): Promise<Report> {
  return data(api.POST("/api/v1/reports", { body: content }));
}

export function listReports(
  search: string,
  after: string | null,
  limit = 100,
): Promise<Schemas["ReportsOut"]> {
  const query = { limit, ...(search !== "" && { search }), ...(after !== null && { after }) };
  return data(api.GET("/api/v1/reports", { params: { query } }));
}

export async function removeReport(id: string): Promise<void> {
  await api.DELETE("/api/v1/reports/{report}", path(id));
}

export const listRevisions = (id: string) =>
  data(api.GET("/api/v1/reports/{report}/revisions", path(id))).then((page) => page.revisions);

export const getRevision = (report: string, revision: number): Promise<Report> =>
  data(
    api.GET("/api/v1/reports/{report}/revisions/{number}", {
      params: { path: { report, number: String(revision) } },
    }),
  );

export const exportAddress = (id: string): string => `/api/v1/reports/${encodeURIComponent(id)}/export`;

const MAX_TRIES = 3;

/** Adds a block at the end of a report, whatever others change meanwhile. */
export async function appendBlock(id: string, block: Block): Promise<void> {
  for (let left = MAX_TRIES; ; left -= 1) {
    const { title, access, blocks, revision } = await reportApi.get(id);
    try {
      await reportApi.put(id, { title, access, revision, blocks: [...(blocks as Block[]), block] });
      return;
    } catch (error) {
      if (left <= 1) {
        throw error;
      }
    }
  }
}
