/** What this browser keeps for the user that is logged in, apart from what it keeps for others. */
import { session } from "./session";

export type TextStorage = Pick<Storage, "getItem" | "setItem" | "removeItem">;

const keyOf = (name: string): string => `${name} ${session.value?.user ?? ""}`;

export const userStorage: TextStorage = {
  getItem: (name) => localStorage.getItem(keyOf(name)),
  setItem: (name, text) => localStorage.setItem(keyOf(name), text),
  removeItem: (name) => localStorage.removeItem(keyOf(name)),
};
