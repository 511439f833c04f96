/** Series of the API as curves. */
import type { Schemas } from "@/api/client";
import type { Checkpoint, Command } from "@/api/runs";
import type { CurveMark, CurveSeries } from "@/charts/curve_series";
import { formatNumber } from "@/text/format";
import { paramText } from "./run_text";

export type XAxis = "step" | "elapsed" | "time";

type Series = Schemas["SeriesOut"];
type Sample = Schemas["SampleOut"];

/** Returns a metric as a curve. `start`: unix seconds of the beginning. Points without a time are left out of an
 *  axis of time. */
export function curveOf(
  name: string,
  series: Series,
  axis: XAxis,
  start: number,
  marks: readonly CurveMark[],
): CurveSeries {
  const points = series.steps
    .map((step, index) => {
      const time = series.times[index] ?? Number.NaN;
      return {
        x: axis === "step" ? step : axis === "time" ? time : time - start,
        y: Number(series.values[index]),
      };
    })
    .filter((point) => Number.isFinite(point.x))
    .sort((a, b) => a.x - b.x);
  return {
    key: name,
    label: name,
    colour: 0,
    x: Float64Array.from(points, (point) => point.x),
    y: Float64Array.from(points, (point) => (Number.isFinite(point.y) ? point.y : Number.NaN)),
    marks,
  };
}

/** Returns the marks of live changes and checkpoints. */
export function marksOf(
  axis: XAxis,
  start: number,
  commands: readonly Command[],
  checkpoints: readonly Checkpoint[],
): CurveMark[] {
  const place = (step: number | null, at: string): number => {
    const time = Date.parse(at) / 1000;
    return axis === "step" ? (step ?? Number.NaN) : axis === "time" ? time : time - start;
  };
  const marks: CurveMark[] = [];
  for (const command of commands) {
    if (command.state === "applied") {
      const changes = Object.entries(command.changes).map(
        ([name, [from, to]]) => `${name} ${valueText(from)} → ${valueText(to)}`,
      );
      const label = changes.length > 0 ? changes.join(", ") : command.kind;
      marks.push({ x: place(command.step, command.answered_at ?? command.created_at), label });
    }
  }
  for (const checkpoint of checkpoints) {
    marks.push({
      x: place(checkpoint.step, checkpoint.created_at),
      label: `checkpoint of step ${checkpoint.step}`,
    });
  }
  return marks.filter((mark) => Number.isFinite(mark.x)).sort((a, b) => a.x - b.x);
}

function valueText(value: string | number | boolean | null): string {
  return typeof value === "number" ? formatNumber(value) : paramText(value);
}

export interface SystemChart {
  title: string;
  unit: "percent" | "bytes";
  series: CurveSeries[];
}

/** Returns the use of the machines as charts, a curve for each rank or GPU. `start`: is subtracted from times. */
export function systemCharts(samples: readonly Sample[], start: number): SystemChart[] {
  const charts = new Map<string, { unit: SystemChart["unit"]; curves: Map<string, [number, number][]> }>();
  const add = (
    title: string,
    unit: SystemChart["unit"],
    curve: string,
    t: number,
    value: number | null | undefined,
  ) => {
    if (typeof value !== "number") {
      return;
    }
    let chart = charts.get(title);
    if (!chart) {
      chart = { unit, curves: new Map() };
      charts.set(title, chart);
    }
    const points = chart.curves.get(curve);
    if (points) {
      points.push([t, value]);
    } else {
      chart.curves.set(curve, [[t, value]]);
    }
  };
  for (const sample of samples) {
    const t = sample.t - start;
    const rank = `rank ${sample.rank}`;
    for (const gpu of sample.gpus) {
      add("GPU (percent)", "percent", `${rank}, GPU ${gpu.index}`, t, gpu.utilisation_percent);
      add("GPU memory", "bytes", `${rank}, GPU ${gpu.index}`, t, gpu.memory_bytes);
    }
    add("CPU (percent of one)", "percent", rank, t, sample.cpu_percent);
    add("Memory", "bytes", rank, t, sample.memory_bytes);
    add("Network of the host, per second", "bytes", `${rank}, received`, t, sample.host_received_bytes_per_s);
    add("Network of the host, per second", "bytes", `${rank}, sent`, t, sample.host_sent_bytes_per_s);
    add("Disk, per second", "bytes", `${rank}, read`, t, sample.read_bytes_per_s);
    add("Disk, per second", "bytes", `${rank}, written`, t, sample.write_bytes_per_s);
  }
  return [...charts].map(([title, { unit, curves }]) => ({
    title,
    unit,
    series: [...curves].map(([label, points], index) => {
      points.sort((a, b) => a[0] - b[0]);
      return {
        key: label,
        label,
        colour: index,
        x: Float64Array.from(points, (point) => point[0]),
        y: Float64Array.from(points, (point) => point[1]),
      };
    }),
  }));
}
