import { Button } from "@/parts/button";
import { formatBytes } from "@/text/format";
import type { Step } from "./use_upload";
import styles from "./upload.module.css";

/** What an upload does at present, how far it is, and a button that ends it. */
export function UploadProgress({ step, onCancel }: { step: Step; onCancel: () => void }) {
  return (
    <div class={styles["progress"]} role="status">
      <span>
        {step.text}
        {step.total > 0 && ` · ${formatBytes(step.done)} of ${formatBytes(step.total)}`}
      </span>
      <progress value={step.total > 0 ? step.done : undefined} max={step.total || 1} aria-label={step.text} />
      <div class={styles["buttons"]}>
        <Button onClick={onCancel}>Cancel</Button>
      </div>
    </div>
  );
}
