import { CopyButton } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import styles from "./settings.module.css";

/** Shows a new token, once. Only its button closes it, so that a click beside it does not lose the token. */
export function SecretDialog({
  title,
  secret,
  onClose,
}: {
  title: string;
  secret: string;
  onClose: () => void;
}) {
  return (
    <Dialog title={title} isOpen onClose={() => undefined}>
      <p>
        Copy the token now: the server stores only its hash, and never shows it again. To use it, run{" "}
        <code>hop login {window.location.origin}</code>, or set <code>HOPYARD_URL</code> and{" "}
        <code>HOPYARD_TOKEN</code>.
      </p>
      <p class={styles["secret"]}>
        <code aria-label="the new token">{secret}</code>
        <CopyButton text={secret} label="Copy" name="copy the token" />
      </p>
      <DialogButtons>
        <Button kind="primary" onClick={onClose}>
          I have copied it
        </Button>
      </DialogButtons>
    </Dialog>
  );
}
