import { useState } from "preact/hooks";
import { Button } from "@/parts/button";
import fieldStyles from "@/parts/field.module.css";
import { Popover } from "@/parts/popover";
import { columnTitle } from "./columns";
import styles from "./columns_menu.module.css";

const MAX_SHOWN = 60;

/** Moves an entry of a list by a number of places, within its ends. */
export function move(names: readonly string[], name: string, by: number): string[] {
  const rest = names.filter((other) => other !== name);
  const index = Math.max(0, Math.min(rest.length, names.indexOf(name) + by));
  return [...rest.slice(0, index), name, ...rest.slice(index)];
}

/** Chooses the columns and their order. `usual`: whether the page chooses them. */
export function ColumnsMenu({
  columns,
  known,
  isUsual,
  onChange,
}: {
  columns: readonly string[];
  known: readonly string[];
  isUsual: boolean;
  onChange: (columns: readonly string[]) => void;
}) {
  const [text, setText] = useState("");
  const matches = (name: string) => `${name} ${columnTitle(name)}`.toLowerCase().includes(text.toLowerCase());
  const others = known.filter((name) => !columns.includes(name) && matches(name));
  return (
    <Popover label="Columns" title="columns">
      <div class={styles["menu"]}>
        <input
          class={fieldStyles["input"]}
          placeholder="Find a column"
          aria-label="find a column"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <ul aria-label="shown columns">
          {columns.filter(matches).map((name) => (
            <li key={name}>
              <label>
                <input
                  type="checkbox"
                  checked
                  disabled={columns.length === 1}
                  onChange={() => onChange(columns.filter((other) => other !== name))}
                />
                {name}
              </label>
              <button
                type="button"
                aria-label={`move ${name} up`}
                disabled={columns[0] === name}
                onClick={() => onChange(move(columns, name, -1))}
              >
                ↑
              </button>
              <button
                type="button"
                aria-label={`move ${name} down`}
                disabled={columns.at(-1) === name}
                onClick={() => onChange(move(columns, name, 1))}
              >
                ↓
              </button>
            </li>
          ))}
        </ul>
        {others.length > 0 && (
          <ul aria-label="other columns">
            {others.slice(0, MAX_SHOWN).map((name) => (
              <li key={name}>
                <label>
                  <input type="checkbox" checked={false} onChange={() => onChange([...columns, name])} />
                  {name}
                </label>
              </li>
            ))}
            {others.length > MAX_SHOWN && (
              <li class={styles["more"]}>{others.length - MAX_SHOWN} more: type a part of the name</li>
            )}
          </ul>
        )}
        <Button kind="quiet" disabled={isUsual} onClick={() => onChange([])}>
          Use the usual columns
        </Button>
      </div>
    </Popover>
  );
}
