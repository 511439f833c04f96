/** A change that would overwrite what another browser has stored since: the user chooses what stays. */
import { ApiError } from "@/api/client";
import { Button } from "./button";
import styles from "./conflict.module.css";

/**
 * Saves a change that names the revision it replaces.
 *
 * @returns null once it is saved, or what is stored instead (`theirs`: null if it was removed)
 * @throws ApiError for any other refusal
 */
export async function saveOver<Stored>(
  save: () => Promise<unknown>,
  readStored: () => Promise<Stored>,
  isOther: (stored: Stored) => boolean,
): Promise<{ theirs: Stored } | null> {
  try {
    await save();
    return null;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 409) {
      throw error;
    }
    const theirs = await readStored();
    if (!isOther(theirs)) {
      throw error; // another conflict, such as a limit
    }
    return { theirs };
  }
}

/** Says what happened. `load`: what "theirs" becomes; `keep`: what happens to one's own change. */
export function ConflictNotice({
  text,
  load,
  keep,
  onLoad,
  onKeep,
}: {
  text: string;
  load: string;
  keep: string;
  onLoad: () => void;
  onKeep: () => void;
}) {
  return (
    <section class={styles["conflict"]} role="alert">
      <p>{text} Nothing was overwritten: choose what stays.</p>
      <Button onClick={onLoad}>{load}</Button>
      <Button onClick={onKeep}>{keep}</Button>
    </section>
  );
}
