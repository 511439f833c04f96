/** The days of a month, in whole weeks from Monday, for the calendar. */
import type { Occurrence } from "./spans";

export interface Day {
  key: string; // 2026-11-28
  date: Date;
  isInMonth: boolean;
  occurrences: readonly Occurrence[];
}

const pad = (value: number) => String(value).padStart(2, "0");

export function dayKey(date: Date): string {
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

/** Reads `2026-11`; the month of `now` where the text is none. Returns the first day, at midnight. */
export function readMonth(text: string | null, now: Date): Date {
  const match = /^(\d{4})-(0[1-9]|1[0-2])$/.exec(text ?? "");
  return match
    ? new Date(Number(match[1]), Number(match[2]) - 1, 1)
    : new Date(now.getFullYear(), now.getMonth(), 1);
}

export function monthKey(date: Date): string {
  return dayKey(date).slice(0, 7);
}

/** Returns the first and the last midnight of the weeks that the month touches. */
export function monthRange(first: Date): { since: Date; until: Date } {
  const since = new Date(first);
  since.setDate(1 - ((first.getDay() + 6) % 7));
  const until = new Date(first.getFullYear(), first.getMonth() + 1, 1);
  until.setDate(until.getDate() + ((8 - until.getDay()) % 7));
  return { since, until };
}

/** Returns the days of the weeks that the month touches, each with the occurrences that touch it. */
export function monthDays(first: Date, occurrences: readonly Occurrence[]): Day[] {
  const { since, until } = monthRange(first);
  const days: Day[] = [];
  for (const date = new Date(since); date < until; date.setDate(date.getDate() + 1)) {
    const next = new Date(date);
    next.setDate(next.getDate() + 1);
    days.push({
      key: dayKey(date),
      date: new Date(date),
      isInMonth: date.getMonth() === first.getMonth(),
      occurrences: occurrences.filter(
        (each) => Date.parse(each.start_at) < next.getTime() && Date.parse(each.end_at) > date.getTime(),
      ),
    });
  }
  return days;
}
