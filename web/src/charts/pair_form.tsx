import { useState } from "preact/hooks";
import { Button } from "@/parts/button";
import styles from "@/parts/page.module.css";
import selectStyles from "./pair_form.module.css";
import type { MetricPair } from "./panels";

/** Adds a panel of one metric over another. */
export function PairForm({
  metrics,
  onAdd,
}: {
  metrics: readonly string[];
  onAdd: (pair: MetricPair) => void;
}) {
  const [y, setY] = useState("");
  const [x, setX] = useState("");
  const options = ["", ...metrics].map((name) => (
    <option key={name} value={name}>
      {name}
    </option>
  ));
  return (
    <form
      class={`${styles["bar"]} ${selectStyles["form"]}`}
      onSubmit={(event) => {
        event.preventDefault();
        onAdd({ y, x });
      }}
    >
      <label>
        Panel of
        <select value={y} onChange={(event) => setY(event.currentTarget.value)}>
          {options}
        </select>
      </label>
      <label>
        over
        <select value={x} onChange={(event) => setX(event.currentTarget.value)}>
          {options}
        </select>
      </label>
      <Button type="submit" disabled={x === "" || y === "" || x === y}>
        Add panel
      </Button>
    </form>
  );
}
