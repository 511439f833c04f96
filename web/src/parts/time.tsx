import styles from "./time.module.css";

const pad = (value: number) => String(value).padStart(2, "0");

/** A time of this machine's zone; the exact one is its title. */
export function Time({ at }: { at: string | number }) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return (
    <time dateTime={date.toISOString()} title={date.toISOString()} class={styles["time"]}>
      {isToday ? clock : `${day} ${clock}`}
    </time>
  );
}
