/** Ids of runs. The page chooses them, so that a request that is sent again makes no second run. */
import { serverNow } from "@/api/answers";

const DIGITS = "0123456789abcdefghjkmnpqrstvwxyz";
const [TIME_DIGITS, RANDOM_DIGITS] = [9, 11];

/** Returns an id of 20 characters that sorts by `at`, in milliseconds. */
export function newRunId(at: number = serverNow()): string {
  let time = "";
  for (let rest = at, digit = 0; digit < TIME_DIGITS; digit += 1) {
    time = (DIGITS[rest % DIGITS.length] ?? "") + time;
    rest = Math.floor(rest / DIGITS.length);
  }
  const random = crypto.getRandomValues(new Uint8Array(RANDOM_DIGITS));
  return time + [...random].map((byte) => DIGITS[byte % DIGITS.length] ?? "").join("");
}
