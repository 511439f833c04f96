import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import styles from "./button.module.css";

type Props = Omit<ButtonHTMLAttributes, "class" | "icon"> & {
  kind?: "plain" | "primary" | "danger" | "quiet";
  children: ComponentChildren;
};

/** A button. `kind`: how much it stands out; `danger` for what cannot be undone. */
export function Button({ kind = "plain", type = "button", children, ...rest }: Props) {
  return (
    <button {...rest} type={type} class={`${styles["button"]} ${styles[kind]}`}>
      {children}
    </button>
  );
}
