/** Reads datasets, their versions and files, and their leaderboards. */
import { api, data, type Schemas } from "./client";
import { allPages, type TreeFile } from "./runs";

export type Dataset = Schemas["Dataset"];
export type DatasetVersion = Schemas["DatasetVersion"];
export type DatasetEntry = Schemas["DatasetEntryOut"];
export type Board = Schemas["BoardOut"];

const HEAD_BYTES = 1 << 20;

export async function listDatasets(): Promise<Dataset[]> {
  const pages = await allPages<Schemas["DatasetsOut"]>((after) =>
    data(api.GET("/api/v1/datasets", { params: { query: after === null ? {} : { after } } })),
  );
  return pages.flatMap((page) => page.datasets);
}

/** Lists the versions of a dataset, newest first. */
export async function listVersions(name: string): Promise<DatasetVersion[]> {
  const pages = await allPages<Schemas["VersionsOut"]>((before) =>
    data(
      api.GET("/api/v1/datasets/{name}/versions", {
        params: { path: { name }, query: before === null ? {} : { before } },
      }),
    ),
  );
  return pages.flatMap((page) => page.versions);
}

/** Ranks the runs on a dataset, by its own metric unless the query names one. */
export function getBoard(
  name: string,
  query: { limit: number; metric?: string; value?: Schemas["ValueSource"] },
): Promise<Board> {
  return data(api.GET("/api/v1/datasets/{name}/board", { params: { path: { name }, query } }));
}

/** Returns the address of a file; a picture, audio or video can be shown from it. */
export function fileAddress(version: DatasetVersion, path: string): string {
  const place = `${encodeURIComponent(version.dataset)}/versions/${version.number}`;
  return `/api/v1/datasets/${place}/file?${new URLSearchParams({ path }).toString()}`;
}

/** Returns a file of a version, which is read as a whole or in parts. */
export function datasetFile(version: DatasetVersion, path: string, sizeBytes: number): TreeFile {
  const read = async (range?: string) => {
    const body = await data(
      api.GET("/api/v1/datasets/{name}/versions/{version}/file", {
        params: { path: { name: version.dataset, version: String(version.number) }, query: { path } },
        parseAs: "arrayBuffer",
        ...(range === undefined ? {} : { headers: { Range: range } }),
      }),
    );
    return new Uint8Array(body);
  };
  const part = (begin: number, end: number) => read(`bytes=${begin}-${end - 1}`);
  return {
    path,
    sizeBytes,
    read: () => read(),
    head: () => part(0, Math.min(sizeBytes, HEAD_BYTES)),
    part,
    address: fileAddress(version, path),
  };
}
