/** Markdown, of which the parser and the converter of formulas are loaded late. */
import type { ComponentType } from "preact";
import { Suspense } from "preact/compat";
import { lazy, loadPart } from "@/shell/lazy";
import { Loading } from "./notices";

interface Props {
  text: string;
  top: number; // the level of headings that becomes `h2`
}

const load = () => loadPart(() => import("./markdown"));
const Late = lazy(() => load().then((part) => part.Markdown));
let loaded: ComponentType<Props> | null = null;

/** Loads what these texts need, so that they are then drawn at once, with their formulas. */
export async function prepareMarkdown(texts: readonly string[]): Promise<void> {
  const [part] = await Promise.all([
    load(),
    texts.some((text) => text.includes("$"))
      ? import("./maths").then((maths) => maths.loadConverter())
      : null,
  ]);
  loaded = part.Markdown;
}

/** Returns the highest level of the headings in texts; 1 without any. */
export function topHeading(texts: readonly string[]): number {
  const signs = texts.flatMap((text) => text.match(/^ {0,3}#{1,6}(?=\s)/gm) ?? []);
  return signs.length === 0 ? 1 : Math.min(...signs.map((sign) => sign.trim().length));
}

export function LateMarkdown(props: Props) {
  const Loaded = loaded;
  return Loaded ? (
    <Loaded {...props} />
  ) : (
    <Suspense fallback={<Loading rows={2} />}>
      <Late {...props} />
    </Suspense>
  );
}
