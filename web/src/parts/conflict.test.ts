import { expect, it, vi } from "vitest";
import { ApiError } from "@/api/client";
import { saveOver } from "./conflict";

const refuse = (status: number) => () =>
  Promise.reject(new ApiError(status, status === 409 ? "conflict" : "forbidden", "refused"));
const stored = (revision: number) => () => Promise.resolve({ revision });
const isOther = ({ revision }: { revision: number }) => revision !== 1;

it("returns what another browser stored, and null once the change is saved", async () => {
  const read = vi.fn(stored(2));
  expect(await saveOver(() => Promise.resolve(), read, isOther)).toBeNull();
  expect(read).not.toHaveBeenCalled();
  expect(await saveOver(refuse(409), read, isOther)).toEqual({ theirs: { revision: 2 } });
});

it("passes on refusals that are no lost change", async () => {
  await expect(saveOver(refuse(403), stored(2), isOther)).rejects.toThrow("refused");
  await expect(saveOver(refuse(409), stored(1), isOther)).rejects.toThrow("refused");
});
