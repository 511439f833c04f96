import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Button } from "@/parts/button";
import type { PromptSession } from "./prompt_session";
import { isIncomplete, nameBefore } from "./python_input";
import styles from "./console.module.css";

/** Shows a Python prompt, which outlives this view. */
export function PromptView({ session }: { session: PromptSession }) {
  const [text, setText] = useState("");
  const [names, setNames] = useState<readonly string[]>([]);
  const back = useRef(0); // how far the history is gone back
  const transcript = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLTextAreaElement>(null);
  const entries = session.entries.value;
  const isOpen = session.state.value.phase === "open";
  const isBusy = session.isBusy.value;
  useLayoutEffect(() => {
    transcript.current?.scrollTo(0, transcript.current.scrollHeight);
  }, [entries]);
  const wasOpen = useRef(isOpen);
  useLayoutEffect(() => {
    if (isOpen && !wasOpen.current) {
      input.current?.focus(); // the user has just opened it, to type
    }
    wasOpen.current = isOpen;
  }, [isOpen]);
  const change = (value: string) => {
    setText(value);
    setNames([]);
  };
  const evaluate = () => {
    if (text.trim() !== "" && isOpen && !isBusy) {
      session.evaluate(text.replace(/\s+$/, ""));
      back.current = 0;
      change("");
    }
  };
  const recall = (step: number) => {
    const length = session.history.length;
    back.current = Math.max(0, Math.min(length, back.current + step));
    change(session.history[length - back.current] ?? "");
  };
  const insert = (name: string) => {
    const caret = input.current?.selectionStart ?? text.length;
    const before = text.slice(0, caret);
    change(before.slice(0, before.length - nameBefore(before).length) + name + text.slice(caret));
    input.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent & { currentTarget: HTMLTextAreaElement }) => {
    const { selectionStart, selectionEnd } = event.currentTarget;
    const before = text.slice(0, selectionStart);
    if (event.key === "Enter" && !event.shiftKey && !isIncomplete(text)) {
      event.preventDefault();
      evaluate();
    } else if (event.key === "ArrowUp" && !before.includes("\n")) {
      event.preventDefault();
      recall(1);
    } else if (event.key === "ArrowDown" && !text.slice(selectionEnd).includes("\n") && back.current > 0) {
      event.preventDefault();
      recall(-1);
    } else if (event.key === "Tab" && !event.shiftKey && isOpen && nameBefore(before) !== "") {
      event.preventDefault();
      session.complete(nameBefore(before), (found) => {
        if (found.length === 1 && found[0] !== undefined) {
          insert(found[0]);
        } else {
          setNames(found);
        }
      });
    } else if (event.key === "c" && event.ctrlKey && selectionStart === selectionEnd && isBusy) {
      event.preventDefault();
      session.interrupt();
    }
  };
  return (
    <div class={styles["prompt"]}>
      <div
        ref={transcript}
        class={styles["transcript"]}
        role="log"
        aria-label="what was evaluated"
        tabIndex={0}
      >
        {entries.map((entry, index) => (
          <pre key={index} class={styles[entry.kind]}>
            {entry.kind === "input" ? `>>> ${entry.text.replaceAll("\n", "\n... ")}` : entry.text}
          </pre>
        ))}
        {session.isWaiting.value && <p>Waiting for the next safe point of the script…</p>}
      </div>
      {names.length > 0 && (
        <div class={styles["names"]} role="group" aria-label="names">
          {names.map((name) => (
            <button key={name} type="button" onClick={() => insert(name)}>
              {name}
            </button>
          ))}
        </div>
      )}
      <div class={styles["entry"]}>
        <textarea
          ref={input}
          aria-label="Python"
          placeholder="p.lr"
          title="Enter evaluates, Shift+Enter begins a line, Tab completes a name, the arrow keys recall"
          rows={Math.min(8, text.split("\n").length)}
          value={text}
          disabled={!isOpen}
          spellcheck={false}
          autocomplete="off"
          onInput={(event) => change(event.currentTarget.value)}
          onKeyDown={onKeyDown}
        />
        {isBusy ? (
          <Button onClick={() => session.interrupt()}>Interrupt</Button>
        ) : (
          <Button kind="primary" disabled={!isOpen || text.trim() === ""} onClick={evaluate}>
            Evaluate
          </Button>
        )}
      </div>
    </div>
  );
}
