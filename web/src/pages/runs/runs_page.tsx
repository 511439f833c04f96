import { useEffect, useState } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { PhaseBadge } from "@/parts/phase";

/** The table of runs. */
export function RunsPage() {
  const [runs, setRuns] = useState<Schemas["RunOut"][] | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    data(api.GET("/api/v1/runs", { params: { query: { trials: 0 } } }))
      .then((page) => setRuns(page.runs))
      .catch(setError);
  }, []);
  if (error !== null) {
    return <ErrorNotice error={error} />;
  }
  if (runs === null) {
    return <Loading />;
  }
  if (runs.length === 0) {
    return <Empty title="No runs yet" command="hop run main.py -d mnist" />;
  }
  return (
    <ul>
      {runs.map((run) => (
        <li key={run.id}>
          {run.name} <PhaseBadge phase={run.phase} />
        </li>
      ))}
    </ul>
  );
}
