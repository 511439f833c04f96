import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "@/api/client";
import { userStorage } from "@/api/user_storage";
import fieldStyles from "@/parts/field.module.css";
import { completeName } from "./completion";
import { focusPage } from "@/shell/page_focus";
import styles from "./filter_box.module.css";
import { isQuery } from "./view";

export const FILTER_ID = "filter";
const SETTLE_MS = 60;
const HISTORY_KEY = "hopyard.filters";
const MAX_HISTORY = 12;

function readHistory(): string[] {
  try {
    const stored: unknown = JSON.parse(userStorage.getItem(HISTORY_KEY) ?? "[]");
    return Array.isArray(stored) ? stored.filter((text) => typeof text === "string") : [];
  } catch {
    return [];
  }
}

function remember(text: string): void {
  if (text.trim() !== "") {
    const kept = [text, ...readHistory().filter((other) => other !== text)].slice(0, MAX_HISTORY);
    userStorage.setItem(HISTORY_KEY, JSON.stringify(kept));
  }
}

/** Words, or a query of the language of `hop ps --where`. The server reads it; its error stands below. */
export function FilterBox({
  value,
  error,
  names,
  onChange,
}: {
  value: string;
  error: unknown;
  names: readonly string[]; // that a query may use
  onChange: (value: string) => void;
}) {
  const [text, setText] = useState(value);
  const [isFocused, setFocused] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const sent = useRef(value);
  useEffect(() => {
    // what was sent comes back later as `value`, and must not replace letters that were typed meanwhile
    if (value !== sent.current) {
      sent.current = value;
      setText(value);
    }
  }, [value]);
  const send = (filter: string) => {
    sent.current = filter;
    onChange(filter);
  };
  useEffect(() => {
    if (text === sent.current) {
      return;
    }
    const timer = window.setTimeout(() => send(text), SETTLE_MS);
    return () => window.clearTimeout(timer);
  }, [text]);

  const suggestions = text === "" ? readHistory() : completeName(text, names);
  const isOpen = isFocused && suggestions.length > 0;
  const take = (suggestion: string) => {
    setText(suggestion);
    setChosen(-1);
  };
  const refused = error instanceof ApiError && error.status === 400 ? error : null;
  return (
    <div class={styles["box"]} role="search">
      <input
        id={FILTER_ID}
        class={`${fieldStyles["input"]} ${styles["input"]}`}
        type="text"
        spellcheck={false}
        autocomplete="off"
        placeholder="Filter: words, or val_acc > 0.9 and params.lr < 1e-3"
        aria-label="filter"
        aria-invalid={refused !== null}
        aria-describedby={refused === null ? undefined : "filter-error"}
        role="combobox"
        aria-expanded={isOpen}
        aria-controls="filter-suggestions"
        aria-activedescendant={isOpen && chosen >= 0 ? `filter-suggestion-${chosen}` : undefined}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setChosen(-1);
        }}
        onFocus={() => setFocused(true)}
        onBlur={() => {
          setFocused(false);
          remember(text);
        }}
        onKeyDown={(event) => {
          const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
          const suggestion = suggestions[chosen];
          if (step !== 0 && isOpen) {
            event.preventDefault();
            setChosen((chosen + step + suggestions.length + 1) % (suggestions.length + 1));
          } else if ((event.key === "Enter" || event.key === "Tab") && isOpen && suggestion !== undefined) {
            event.preventDefault();
            take(suggestion);
          } else if (event.key === "Enter") {
            send(text);
            focusPage();
          } else if (event.key === "Escape") {
            focusPage();
          }
        }}
      />
      <span class={styles["kind"]} aria-hidden="true">
        {text.trim() === "" ? "/" : isQuery(text) ? "query" : "words"}
      </span>
      {isOpen && (
        <ul id="filter-suggestions" role="listbox" aria-label="suggestions" class={styles["suggestions"]}>
          {suggestions.map((suggestion, index) => (
            <li
              key={suggestion}
              id={`filter-suggestion-${index}`}
              role="option"
              aria-selected={index === chosen}
              onMouseDown={(event) => {
                event.preventDefault();
                take(suggestion);
              }}
            >
              {suggestion}
            </li>
          ))}
        </ul>
      )}
      {refused !== null && (
        <p id="filter-error" role="alert" class={styles["error"]}>
          {refused.message}
          {refused.hints.map((hint) => (
            <span key={hint}> {hint}</span>
          ))}
        </p>
      )}
    </div>
  );
}
