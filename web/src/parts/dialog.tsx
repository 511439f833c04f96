import type { ComponentChildren } from "preact";
import { Dialog as Base } from "@base-ui/react/dialog";
import styles from "./dialog.module.css";

/** A dialog in front of the page. Escape and a click beside it close it; the focus returns to where it was. */
export function Dialog({
  title,
  isOpen,
  onClose,
  isWide = false,
  children,
}: {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  isWide?: boolean;
  children: ComponentChildren;
}) {
  return (
    <Base.Root
      open={isOpen}
      onOpenChange={(open) => {
        if (!open) {
          onClose();
        }
      }}
    >
      <Base.Portal>
        <Base.Backdrop className={styles["backdrop"]} />
        <Base.Popup className={`${styles["popup"]} ${isWide ? styles["wide"] : ""}`}>
          <Base.Title className={styles["title"]}>{title}</Base.Title>
          {children}
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}

/** The row of buttons at the end of a dialog. */
export function DialogButtons({ children }: { children: ComponentChildren }) {
  return <div class={styles["buttons"]}>{children}</div>;
}
