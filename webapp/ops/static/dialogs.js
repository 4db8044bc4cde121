// What an action would do is asked of the server and shown; only then can it be done.
import { Unauthorised, act, useToken } from "./stream.js";

const element = (id) => document.getElementById(id);
let silence = 0;

export function say(text) {
  element("said").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { element("said").textContent = ""; }, 8000);
}

export function dialogs(signedIn) {
  const confirm = element("confirm");
  const token = element("token");
  let pending = null;

  const failed = (error) => {
    if (error instanceof Unauthorised) askToken(error.message);
    else say(error.message);
  };

  function askToken(why) {
    if (why) element("token-why").textContent = `${why} It is kept in this tab only, until it is closed or reloaded.`;
    if (!token.open) token.showModal();
  }

  element("token-button").addEventListener("click", () => askToken(""));
  token.addEventListener("close", () => {
    if (token.returnValue === "save") useToken(element("token-input").value.trim());
    element("token-input").value = "";
    if (token.returnValue === "save") signedIn();
    token.returnValue = "";
  });
  element("confirm-go").addEventListener("click", async () => {
    const { name, given } = pending;
    element("confirm-go").disabled = true;
    try {
      say((await act(name, given, true)).done);
    } catch (error) {
      failed(error);
    }
    element("confirm-go").disabled = false;
    confirm.close();
  });

  async function askFirst(name, given, title) {
    try {
      const { will } = await act(name, given, false);
      pending = { name, given };
      element("confirm-h").textContent = title.replace("…", "");
      element("confirm-go").textContent = title.split(" ")[0].replace("…", "");
      element("confirm-will").textContent = will;
      confirm.showModal();
    } catch (error) {
      failed(error);
    }
  }

  return { token: askToken, action: askFirst };
}
