import { api, data } from "@/api/client";
import type { Dataset } from "@/api/datasets";
import { usePolled } from "@/api/polling";
import { ActionDialog } from "@/parts/action_dialog";
import { ErrorNotice } from "@/parts/notices";
import { formatBytes, formatCount } from "@/text/format";

/** Asks before a version, or the whole dataset, is deleted, and shows what that frees. */
export function DeleteDialog({
  dataset,
  version,
  onClose,
  onDeleted,
}: {
  dataset: Dataset;
  version?: number;
  onClose: () => void;
  onDeleted: () => void;
}) {
  const params = { path: { name: dataset.name }, query: version === undefined ? {} : { version } };
  const { data: preview, error } = usePolled(
    `frees ${dataset.name} ${version ?? ""}`,
    () => data(api.GET("/api/v1/datasets/{name}/deletion", { params })),
    () => null,
  );
  const runs = dataset.runs ?? 0;
  return (
    <ActionDialog
      title={
        version === undefined ? `Delete ${dataset.name}?` : `Delete version ${version} of ${dataset.name}?`
      }
      confirm="Delete for ever"
      kind="danger"
      onClose={onClose}
      onConfirm={async () => {
        await data(api.DELETE("/api/v1/datasets/{name}", { params }));
        onDeleted();
      }}
    >
      <p>
        {version === undefined
          ? `All ${formatCount(dataset.versions, "version goes", "versions go")}, and the leaderboard.`
          : "The other versions stay."}{" "}
        This cannot be undone. Its numbers are never used again.
      </p>
      {error !== null ? (
        <ErrorNotice error={error} />
      ) : (
        <p>
          {preview ? (
            <>
              This frees about <strong>{formatBytes(preview.frees_bytes)}</strong> within two hours.
            </>
          ) : (
            "Counting what this frees…"
          )}
          {runs > 0 &&
            " The runs that used it stay, and keep the files that they used, so that they can be repeated."}
        </p>
      )}
    </ActionDialog>
  );
}
