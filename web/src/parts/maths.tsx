/** TeX as MathML elements. The converter is loaded late, and its output is only read, never inserted. */
import { createElement, type VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { boundAttribute } from "@/text/maths_length";

const MAX_LENGTH = 4000; // characters
const MAX_DEPTH = 60;
const ELEMENTS: ReadonlySet<string> = new Set([
  ...["math", "mrow", "mi", "mo", "mn", "mtext", "mspace", "mfrac", "msqrt", "mroot", "mstyle", "msub"],
  ...["msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts", "none", "mtable"],
  ...["mtr", "mtd", "mpadded", "mphantom", "menclose", "merror", "ms"],
]);
const ATTRIBUTES: ReadonlySet<string> = new Set([
  ...["display", "displaystyle", "scriptlevel", "mathvariant", "mathcolor", "mathbackground", "stretchy"],
  ...["fence", "form", "separator", "lspace", "rspace", "minsize", "maxsize", "largeop", "movablelimits"],
  ...["accent", "accentunder", "linethickness", "width", "height", "depth", "columnalign", "rowspacing"],
  ...["columnspacing", "columnlines", "rowlines", "columnspan", "rowspan", "notation"],
]);

type Converter = (tex: string, isDisplay: boolean) => VNode | null;
let converter: Converter | null = null;

/** Returns the element as one of this page, with known names only; null where something else is in it. */
function copy(element: Element, depth: number): VNode | null {
  const name = element.localName;
  if (!ELEMENTS.has(name) || depth > MAX_DEPTH) {
    return null;
  }
  const attributes = [...element.attributes].flatMap(({ name, value }) => {
    const bounded = ATTRIBUTES.has(name) ? boundAttribute(name, value) : null;
    return bounded === null ? [] : [[name, bounded] as const];
  });
  const children: (VNode | string)[] = [];
  for (const node of element.childNodes) {
    const child = node.nodeType === 1 ? copy(node as Element, depth + 1) : (node.textContent ?? "");
    if (child === null) {
      return null;
    }
    children.push(child);
  }
  return createElement(name, Object.fromEntries(attributes), ...children);
}

/** Loads the converter. It returns null for TeX that it cannot read. */
export async function loadConverter(): Promise<Converter> {
  const { default: temml } = await import("temml");
  converter ??= (tex, isDisplay) => {
    if (tex.length > MAX_LENGTH) {
      return null;
    }
    try {
      const html = temml.renderToString(tex, {
        displayMode: isDisplay,
        throwOnError: true,
        trust: false,
        maxExpand: 200,
      });
      const root = new DOMParser().parseFromString(html, "text/xml").documentElement;
      return root.localName === "math" ? copy(root, 0) : null;
    } catch {
      return null;
    }
  };
  return converter;
}

/** A formula; its source until the converter is there, and where it cannot be read. */
export function Maths({ tex, isDisplay }: { tex: string; isDisplay: boolean }) {
  const [convert, setConvert] = useState<Converter | null>(() => converter);
  useEffect(() => {
    if (convert === null) {
      loadConverter()
        .then((loaded) => setConvert(() => loaded))
        .catch(() => undefined); // the source stays
    }
  }, [convert]);
  const formula = convert?.(tex, isDisplay) ?? null;
  return formula ?? <code>{tex}</code>;
}
