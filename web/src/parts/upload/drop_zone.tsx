import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "@/parts/button";
import { droppedFiles, type ChosenFile, type SelectRules } from "./select_files";
import styles from "./upload.module.css";

/** Where files and folders are dropped or chosen. `onChosen`: files that may still be on their way. */
export function DropZone({
  rules,
  onChosen,
  children,
}: {
  rules: SelectRules;
  onChosen: (files: Promise<ChosenFile[]>) => void;
  children: ComponentChildren;
}) {
  const [isOver, setOver] = useState(false);
  const take = (files: FileList | null) =>
    onChosen(
      Promise.resolve(
        [...(files ?? [])].map((file) => ({ path: file.webkitRelativePath || file.name, file })),
      ),
    );
  return (
    <div
      class={`${styles["drop"]} ${isOver ? styles["over"] : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        if (event.dataTransfer) {
          onChosen(droppedFiles(event.dataTransfer, rules));
        }
      }}
    >
      <strong>Drop a folder or files here</strong>
      <div class={styles["buttons"]}>
        <FileChooser label="Choose a folder" isFolder onFiles={take} />
        <FileChooser label="Choose files" onFiles={take} />
      </div>
      <span class={styles["help"]}>{children}</span>
    </div>
  );
}

function FileChooser({
  label,
  isFolder = false,
  onFiles,
}: {
  label: string;
  isFolder?: boolean;
  onFiles: (files: FileList | null) => void;
}) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (isFolder) {
      input.current?.setAttribute("webkitdirectory", "");
    }
  }, [isFolder]);
  return (
    <>
      <input
        ref={input}
        type="file"
        multiple
        tabIndex={-1}
        aria-label={label}
        onChange={(event) => {
          if (event.currentTarget.files?.length) {
            onFiles(event.currentTarget.files);
          }
        }}
      />
      <Button onClick={() => input.current?.click()}>{label}</Button>
    </>
  );
}
