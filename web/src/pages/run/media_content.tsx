import { useMemo } from "preact/hooks";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import type { MediaItem, Run } from "@/api/runs";
import { ErrorNotice, Loading } from "@/parts/notices";
import { TablePreview } from "@/parts/table_preview";
import { formatCount, formatNumber } from "@/text/format";
import { savedName } from "@/text/shown_name";
import styles from "./media_tab.module.css";

const NONE: readonly unknown[] = [];
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** One item as what it is: a picture, a player, bars, a table, or text. */
export function MediaContent({ run, item }: { run: Run; item: MediaItem }) {
  const address = `/api/v1/runs/${encodeURIComponent(run.id)}/media/${encodeURIComponent(item.id)}`;
  if (PICTURES.has(item.type)) {
    const { width, height } = item.details;
    return (
      <img
        src={address}
        alt={`${item.name}${item.caption === "" ? "" : `: ${item.caption}`}, step ${item.step}`}
        loading="lazy"
        {...(width && height ? { width, height } : {})}
        class={(width ?? 100) < 64 ? styles["small"] : undefined}
      />
    );
  }
  if (item.type.startsWith("audio/")) {
    return <audio controls preload="none" src={address} />;
  }
  if (item.type.startsWith("video/")) {
    return <video controls preload="metadata" src={address} />;
  }
  if (item.kind === "histogram" || item.kind === "table" || item.kind === "text") {
    return <Text run={run} item={item} kind={item.kind} />;
  }
  return (
    <a href={address} download={savedName(`${item.name.replaceAll("/", "-")}-${item.step}`)}>
      Download
    </a>
  );
}

function Text({ run, item, kind }: { run: Run; item: MediaItem; kind: "histogram" | "table" | "text" }) {
  const { data: text, error } = usePolled(
    `medium ${run.id} ${item.id}`,
    () =>
      data<string>(
        api.GET("/api/v1/runs/{id}/media/{item}", {
          params: { path: { id: run.id, item: item.id } },
          parseAs: "text",
        }),
      ),
    () => null,
  );
  const content = useMemo(() => (kind === "text" || text === null ? {} : parseJson(text)), [kind, text]);
  if (text === null) {
    return error === null ? <Loading rows={2} /> : <ErrorNotice error={error} />;
  }
  if (kind === "text") {
    return <pre tabIndex={0}>{text}</pre>;
  }
  return kind === "table" ? (
    <Table content={content} label={`${item.name}, step ${item.step}`} />
  ) : (
    <Histogram content={content} name={item.name} />
  );
}

function parseJson(text: string): Record<string, unknown> {
  try {
    return (JSON.parse(text) as Record<string, unknown> | null) ?? {};
  } catch {
    return {};
  }
}

function Table({ content, label }: { content: Record<string, unknown>; label: string }) {
  const columns = Array.isArray(content["columns"]) ? (content["columns"] as unknown[]) : NONE;
  const rows = Array.isArray(content["rows"]) ? (content["rows"] as unknown[][]) : NONE;
  return <TablePreview label={label} header={columns} rows={rows as unknown[][]} isCompact />;
}

const WIDTH = 320;
const HEIGHT = 120;

function Histogram({ content, name }: { content: Record<string, unknown>; name: string }) {
  const counts = (content["counts"] as number[] | undefined) ?? [];
  const edges = (content["edges"] as number[] | undefined) ?? [];
  const low = edges[0] ?? 0;
  const high = edges.at(-1) ?? 1;
  const total = counts.reduce((sum, count) => sum + count, 0);
  // buckets may have different widths: the height is the density
  const densities = counts.map((count, index) => {
    const width = (edges[index + 1] ?? 0) - (edges[index] ?? 0);
    return width > 0 ? count / width : 0;
  });
  const top = Math.max(...densities, Number.MIN_VALUE);
  const x = (value: number) => (high > low ? ((value - low) / (high - low)) * WIDTH : 0);
  return (
    <div class={styles["histogram"]}>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        preserveAspectRatio="none"
        aria-label={`${name}: ${formatCount(total, "value")} from ${formatNumber(low)} to ${formatNumber(high)}`}
      >
        {densities.map((density, index) => {
          const begin = x(edges[index] ?? 0);
          const height = (density / top) * HEIGHT;
          return (
            <rect
              key={index}
              x={begin}
              y={HEIGHT - height}
              width={Math.max(0.5, x(edges[index + 1] ?? 0) - begin - 0.5)}
              height={height}
            />
          );
        })}
      </svg>
      <div>
        <span>{formatNumber(low)}</span>
        <span>{formatCount(total, "value")}</span>
        <span>{formatNumber(high)}</span>
      </div>
    </div>
  );
}
