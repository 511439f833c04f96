/** Markdown as elements. Nothing of the text becomes markup: each token is an element of this file, or a text. */
import type { ComponentChildren, VNode } from "preact";
import { createElement } from "preact";
import { useMemo } from "preact/hooks";
import { isPicture, parseMarkdown, safeAddress, type Token } from "@/text/markdown";
import styles from "./markdown.module.css";
import { Maths } from "./maths";

const TAGS: ReadonlySet<string> = new Set([
  ...["p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "em", "strong", "s"],
  ...["table", "thead", "tbody", "tr", "th", "td", "a"],
]);

/** @param top the level of headings that becomes `h2`, since `h1` is the title of the page */
export function Markdown({ text, top = 1 }: { text: string; top?: number }) {
  const content = useMemo(() => build(parseMarkdown(text), top - 2), [text, top]);
  return <div class={styles["markdown"]}>{content}</div>;
}

const attribute = (token: Token, name: string): string => String(token.attrGet(name) ?? "");

/** Returns the elements of tokens: what is between an opening and its closing token is inside of its element.
 *  raised: by how many levels headings are higher than written. */
function build(tokens: readonly Token[], raised: number): ComponentChildren[] {
  const stack: { token: Token | null; children: ComponentChildren[] }[] = [{ token: null, children: [] }];
  const add = (child: ComponentChildren) => stack.at(-1)?.children.push(child);
  for (const token of tokens) {
    if (token.nesting === 1) {
      stack.push({ token, children: [] });
    } else if (token.nesting === -1) {
      const closed = stack.pop();
      add(closed?.token ? wrap(closed.token, closed.children, raised) : null);
    } else {
      add(leaf(token, raised));
    }
  }
  return stack[0]?.children ?? [];
}

function wrap(token: Token, children: ComponentChildren[], raised: number): ComponentChildren {
  if (token.hidden) {
    return children; // the paragraphs of a tight list
  }
  if (token.tag === "a") {
    return link(attribute(token, "href"), children);
  }
  if (!TAGS.has(token.tag)) {
    return children;
  }
  const level = /^h([1-6])$/.exec(token.tag)?.[1];
  const tag = level === undefined ? token.tag : `h${Math.max(2, Math.min(6, Number(level) - raised))}`;
  const align = /text-align:(center|right)/.exec(attribute(token, "style"))?.[1];
  const start = attribute(token, "start");
  return createElement(
    tag,
    { ...(align !== undefined && { class: styles[align] }), ...(start !== "" && { start: Number(start) }) },
    children,
  );
}

function leaf(token: Token, raised: number): ComponentChildren {
  switch (token.type) {
    case "inline":
      return build(token.children ?? [], raised);
    case "text":
    case "text_special":
    case "html_inline":
    case "html_block":
      return token.content;
    case "softbreak":
      return "\n";
    case "hardbreak":
      return <br />;
    case "hr":
      return <hr />;
    case "code_inline":
      return <code>{token.content}</code>;
    case "code_block":
    case "fence":
      return <pre tabIndex={0}>{token.content}</pre>;
    case "math_inline":
    case "math_display":
      return <Maths tex={token.content} isDisplay={token.type === "math_display"} />;
    case "image":
      return picture(token);
    default:
      return token.content;
  }
}

/** A picture in the text itself is shown; one elsewhere becomes a link, since the page loads from no other host. */
function picture(token: Token): VNode {
  const source = attribute(token, "src");
  const name = token.content === "" ? "picture" : token.content;
  return isPicture(source) ? <img src={source} alt={name} /> : link(source, [name]);
}

function link(address: string, children: ComponentChildren[]): VNode {
  const safe = safeAddress(address);
  if (safe === null) {
    return <span>{children}</span>;
  }
  return /^https?:/i.test(safe) ? (
    <a href={safe} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  ) : (
    <a href={safe} rel="nofollow">
      {children}
    </a>
  );
}
