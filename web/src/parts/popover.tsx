import type { ComponentChildren } from "preact";
import { Popover as Base } from "@base-ui/react/popover";
import buttonStyles from "./button.module.css";
import styles from "./popover.module.css";

/** A button that opens a panel below it. `title`: of the panel, for screen readers. */
export function Popover({
  label,
  title,
  children,
}: {
  label: ComponentChildren;
  title: string;
  children: ComponentChildren;
}) {
  return (
    <Base.Root>
      <Base.Trigger className={`${buttonStyles["button"]} ${buttonStyles["plain"]}`}>{label}</Base.Trigger>
      <Base.Portal>
        <Base.Positioner sideOffset={4} align="end" className={styles["positioner"]}>
          <Base.Popup className={styles["popup"]} aria-label={title}>
            {children}
          </Base.Popup>
        </Base.Positioner>
      </Base.Portal>
    </Base.Root>
  );
}
