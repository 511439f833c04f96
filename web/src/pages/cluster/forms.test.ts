import { expect, test } from "vitest";
import { formatAmounts } from "./amounts";
import { dayKey, monthDays, monthKey, readMonth } from "./month";
import { EMPTY_FORM, toReservation } from "./reserve_form";
import type { Occurrence } from "./spans";
import { usageCsv, type Usage } from "./usage_csv";

test("amounts are in units that people use, GPUs first", () => {
  const amounts = { memory: 2 ** 36, cpu: 1000, gpu: 2500, "gpu:a100": 1000, fpga: 2, tpu: 0 };
  expect(formatAmounts(amounts)).toBe("2.5 GPUs, 2 fpga, 1 a100 GPU, 1 CPU, 64 GiB");
  expect(formatAmounts({})).toBe("–");
});

test("a month is whole weeks from Monday, and an occurrence is on each of its days", () => {
  const first = readMonth("2026-11", new Date());
  const start = new Date(2026, 10, 3, 22);
  const occurrence = { start_at: start.toISOString(), end_at: new Date(2026, 10, 5, 0).toISOString() };
  const days = monthDays(first, [occurrence as Occurrence]);
  expect(days.length % 7).toBe(0);
  expect(days[0]?.date.getDay()).toBe(1);
  expect(days.filter((day) => day.isInMonth)).toHaveLength(30);
  expect(days.filter((day) => day.occurrences.length > 0).map((day) => day.key)).toEqual([
    "2026-11-03",
    "2026-11-04",
  ]);
  expect(monthKey(readMonth("2026-13", new Date(2027, 0, 31)))).toBe("2027-01");
  expect(dayKey(new Date(2026, 0, 2))).toBe("2026-01-02");
});

test("the form makes a request, or says what is missing", () => {
  const form = {
    ...EMPTY_FORM,
    name: "exam",
    start: "2026-11-28T09:00",
    end: "2026-11-28T12:00",
    users: "ann, bob",
  };
  expect(() => toReservation({ ...form, name: " " })).toThrow("name");
  expect(() => toReservation({ ...form, users: "" })).toThrow("queue");
  expect(() => toReservation(form)).toThrow("node");
  expect(() => toReservation({ ...form, nodes: ["a"], end: "" })).toThrow("end");
  expect(toReservation({ ...form, nodes: ["a"] })).toMatchObject({
    users: ["ann", "bob"],
    nodes: ["a"],
    every_s: 0,
    until: null,
  });
  const pieces = toReservation({ ...form, what: "pieces", gpus: "2", model: "A100", every: "7" });
  expect(pieces).toMatchObject({
    nodes: [],
    count: 1,
    every_s: 7 * 86400,
    resources: { gpus: 2, gpu_models: ["A100"] },
  });
});

test("the CSV quotes texts, and no text is a formula", () => {
  const row: Usage = {
    ...{ since: "s", until: "u", user: '=HYPERLINK("x")', queue: "a,b", project: null },
    ...{ attempts: 1, held_s: 2, gpu_s: 0.5, cpu_s: 3, memory_byte_s: 4 },
  };
  expect(usageCsv([row], ["user", "queue"])).toBe(
    "since,until,user,queue,attempts,held_s,gpu_s,cpu_s,memory_byte_s\r\n" +
      's,u,"\'=HYPERLINK(""x"")","a,b",1,2,0.5,3,4\r\n',
  );
});
