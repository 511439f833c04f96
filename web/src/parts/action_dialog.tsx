import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Dialog } from "@base-ui/react/dialog";
import { Button } from "@/parts/button";
import { ErrorNotice } from "@/parts/notices";
import styles from "./action_dialog.module.css";

/** A dialog that says what an action does, and does it. It stays open with the error of a refused one. */
export function ActionDialog({
  title,
  confirm,
  kind = "primary",
  onConfirm,
  onClose,
  children,
}: {
  title: string;
  confirm: string;
  kind?: "primary" | "danger";
  onConfirm: () => Promise<void>;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const submit = () => {
    setBusy(true);
    setError(null);
    onConfirm()
      .then(onClose)
      .catch((failure: unknown) => {
        setError(failure);
        setBusy(false);
      });
  };
  return (
    <Dialog.Root open onOpenChange={(isOpen) => !isOpen && onClose()}>
      <Dialog.Portal>
        <Dialog.Backdrop className={styles["backdrop"]} />
        <Dialog.Popup className={styles["popup"]}>
          <form
            onSubmit={(event) => {
              event.preventDefault();
              submit();
            }}
          >
            <Dialog.Title className={styles["title"]}>{title}</Dialog.Title>
            {children}
            {error !== null && <ErrorNotice error={error} />}
            <footer>
              <Button onClick={onClose}>Cancel</Button>
              <Button kind={kind} type="submit" disabled={isBusy}>
                {isBusy ? "Waiting for the answer…" : confirm}
              </Button>
            </footer>
          </form>
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
