import { useLayoutEffect, useRef } from "preact/hooks";
import { LateMarkdown, topHeading } from "@/parts/late_markdown";
import page from "./page.module.css";
import styles from "./markdown_field.module.css";

/** Markdown with its preview beside it. The field grows with the text. */
export function MarkdownField({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const element = field.current;
    if (element) {
      element.style.height = "auto";
      element.style.height = `${element.scrollHeight + 2}px`;
    }
  }, [text]);
  return (
    <div class={styles["field"]}>
      <textarea
        ref={field}
        aria-label="Markdown"
        placeholder={"## What we tried\n\nThe loss $\\mathcal{L}$ falls …"}
        maxLength={65536}
        value={text}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      <div aria-label="preview" role="region">
        {text === "" ? (
          <p class={page["quiet"]}>Markdown, with maths between dollar signs.</p>
        ) : (
          <LateMarkdown text={text} top={topHeading([text])} />
        )}
      </div>
    </div>
  );
}
