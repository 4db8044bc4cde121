// Actions: the server says what an action would do; the page shows that, and only then offers to do it.
import { html } from "./charts.js";
import { draw } from "./explain.js";
import { Unauthorised, act, explained, useToken } from "./stream.js";

const element = (id) => document.getElementById(id);
let silence = 0;

export function say(text) {
  element("said").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { element("said").textContent = ""; }, 12000);
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
    if (why) element("token-why").textContent = `${why} It is kept in this tab only, until the tab is closed or reloaded.`;
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
    let said = null;
    let error = null;
    try {
      said = (await act(name, given, true)).done;
    } catch (caught) {
      error = caught;
    }
    element("confirm-go").disabled = false;
    // Closed first: screen readers do not read what is behind an open dialog.
    confirm.close();
    if (error) failed(error);
    else say(said);
  });

  function askWhether(name, given, title, will) {
    pending = { name, given };
    element("confirm-h").textContent = title.replace("…", "");
    element("confirm-go").textContent = title.split(" ")[0].replace("…", "");
    element("confirm-will").textContent = will;
    confirm.showModal();
  }

  async function askFirst(name, given, title) {
    try {
      askWhether(name, given, title, (await act(name, given, false)).will);
    } catch (error) {
      failed(error);
    }
  }

  async function explain(id, total_ms = null) {
    try {
      const about = await explained(id);
      element("explain-h").textContent = `Request ${about.request_id}`;
      element("explain-body").replaceChildren(...draw(about, total_ms));
      element("explain").showModal();
      element("explain-body").scrollTop = 0;
    } catch (error) {
      failed(error);
    }
  }

  return { token: askToken, action: askFirst, explain, tune: tuning(askWhether, failed) };
}

// A form with the values of a model. The server checks what was changed, then the operator confirms it.
function tuning(askWhether, failed) {
  const dialog = element("tune");
  const { policy, max_batch_size: size, max_wait_ms: wait, more } = element("tune-form").elements;
  let model = null;
  let shown = {};

  const values = () => ({ policy: policy.value, max_batch_size: size.value, max_wait_ms: wait.value, more: more.value.trim() });
  const options = (text) => Object.fromEntries(text.split(/[\s,]+/).filter(Boolean).map((each) => {
    const [key, ...value] = each.split("=");
    return [key, value.join("=")];
  }));

  async function next(changes) {
    element("tune-wrong").textContent = "";
    const given = { model: model.name, changes };
    try {
      const { will } = await act("tune", given, false);
      dialog.close();
      askWhether("tune", given, `Tune ${model.name}`, will);
    } catch (error) {
      if (error instanceof Unauthorised) {
        dialog.close();
        failed(error);
      } else element("tune-wrong").textContent = error.message;
    }
  }

  element("tune-form").addEventListener("submit", (event) => {
    if (event.submitter?.value !== "next") return;
    event.preventDefault();
    const now = values();
    const changes = Object.fromEntries(["policy", "max_batch_size", "max_wait_ms"].filter((key) => now[key] !== shown[key]).map((key) => [key, now[key]]));
    // A key that was removed is reset to the file's value.
    if (now.more !== shown.more) for (const key of Object.keys(options(shown.more))) changes[key] = "";
    if (now.more !== shown.more || "policy" in changes) Object.assign(changes, options(now.more));
    next(changes);
  });
  element("tune-back").addEventListener("click", () => next(Object.fromEntries(model.tuned.map((key) => [key, ""]))));

  return (given, policies) => {
    model = given;
    policy.replaceChildren(...policies.map((name) => html("option", { value: name }, name)));
    policy.value = model.policy;
    size.value = model.max_batch_size;
    wait.value = model.max_wait_ms ?? "";
    const shownOptions = (model.weight ?? null) === null ? model.options : { ...model.options, weight: model.weight };
    more.value = Object.entries(shownOptions).map(([key, value]) => `${key}=${value}`).join(" ");
    shown = values();
    element("tune-h").textContent = `Tune ${model.name}`;
    element("tune-wrong").textContent = "";
    element("tune-back").disabled = !model.tuned.length;
    dialog.showModal();
  };
}
