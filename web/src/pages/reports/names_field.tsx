import { useId, useState } from "preact/hooks";
import { Button } from "@/parts/button";
import fieldStyles from "@/parts/field.module.css";
import styles from "./report.module.css";

/** A list of names that is written, or chosen from those that are known. Enter adds a name. */
export function NamesField({
  label,
  names,
  known,
  placeholder,
  onChange,
}: {
  label: string;
  names: readonly string[];
  known: readonly string[];
  placeholder: string;
  onChange: (names: string[]) => void;
}) {
  const id = useId();
  const [text, setText] = useState("");
  const add = (name: string) => {
    const trimmed = name.trim();
    if (trimmed !== "" && !names.includes(trimmed)) {
      onChange([...names, trimmed]);
    }
    setText("");
  };
  return (
    <div class={styles["names"]}>
      <label class={fieldStyles["label"]} for={id}>
        {label}
      </label>
      <ul>
        {names.map((name) => (
          <li key={name}>
            {name}
            <Button
              kind="quiet"
              aria-label={`Remove ${name}`}
              onClick={() => onChange(names.filter((each) => each !== name))}
            >
              ×
            </Button>
          </li>
        ))}
        <li>
          <input
            id={id}
            class={fieldStyles["input"]}
            list={`${id}-known`}
            value={text}
            placeholder={placeholder}
            autocomplete="off"
            onInput={(event) => {
              const value = event.currentTarget.value;
              // a choice of the list arrives at once, what is typed letter by letter
              const isChosen = known.includes(value) && Math.abs(value.length - text.length) > 1;
              if (isChosen) {
                add(value);
              } else {
                setText(value);
              }
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter") {
                event.preventDefault();
                add(text);
              } else if (event.key === "Backspace" && text === "" && names.length > 0) {
                onChange(names.slice(0, -1));
              }
            }}
            onBlur={() => add(text)}
          />
          <datalist id={`${id}-known`}>
            {known
              .filter((name) => !names.includes(name))
              .map((name) => (
                <option key={name} value={name} />
              ))}
          </datalist>
        </li>
      </ul>
    </div>
  );
}
