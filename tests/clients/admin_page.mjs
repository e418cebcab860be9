// Clicks through the operators' page in a real browser: admin_page.mjs EXAMPLE SHOTS
//
// EXAMPLE is the built example `axum`; screenshots go to the folder SHOTS.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [example, shots] = process.argv.slice(2);
const token = "a-token-for-the-test-of-the-page";
const config = join(mkdtempSync(join(tmpdir(), "tollgate-")), "tollgate.toml");
writeFileSync(config, `
[[rule]]
name  = "per-user"
quota = "100/day"
key   = "header:x-user"
algorithm = "fixed-window"

[[rule]]
name  = "planned"
quota = "40/day"
key   = "header:x-user"
mode  = "shadow"
`);

const server = spawn(example, ["--listen", "127.0.0.1:0", "--config", config, "--admin", token], { stdio: ["ignore", "pipe", "inherit"] });
const [line] = await new Promise((resolve) => createInterface(server.stdout).once("line", (...args) => resolve(args)));
const origin = line.split("listening on ")[1];

let load = true;
const ask = (user) => fetch(`${origin}/`, { headers: { "x-user": user } }).then((response) => response.status);
async function press() {
  for (let i = 0; load; i += 1) {
    await ask(i % 4 === 0 ? `guest-${i}` : "mallory").catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

// The sandbox of Chromium needs rights that containers seldom have; what it opens here is ours.
const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
let failed;
try {
  const page = await browser.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (message) => {
    // A refusal with 401 is told there as well, and is meant.
    if (message.type() === "error" && !message.text().includes("401")) complaints.push(message.text());
  });
  const foreign = [];
  page.on("request", (request) => { if (!request.url().startsWith(origin)) foreign.push(request.url()); });
  const text = (selector) => page.$eval(selector, (element) => element.innerText);
  const until = (what, ...args) => page.waitForFunction(what, { timeout: 15_000, polling: 100 }, ...args);

  // The shell shows nothing without the token, and a wrong one opens nothing.
  await page.setViewport({ width: 1200, height: 900 });
  await page.goto(`${origin}/admin`);
  assert.equal(await page.$eval("#desk", (desk) => desk.hidden), true);
  await page.type("#token", "a-wrong-token-of-some-length");
  await page.keyboard.press("Enter");
  await until(() => document.getElementById("message").textContent.includes("wrong"));
  assert.equal(await page.$eval("#desk", (desk) => desk.hidden), true);

  // By keyboard alone: the field has the focus.
  await page.keyboard.type(token);
  await page.keyboard.press("Enter");
  await until(() => !document.getElementById("desk").hidden);
  assert.deepEqual(await page.$$eval(".card h3", (cards) => cards.map((card) => card.textContent)), ["per-user", "planned"]);

  // Rates move under load.
  const pressing = press();
  await until(() => {
    const rates = [...document.querySelectorAll('[data-rule="per-user"] .now b')].map((rate) => Number(rate.textContent));
    return rates[0] > 1 && rates[1] > 1;
  });
  await until(() => document.querySelector('[data-rule="per-user"] polyline.refused').points.length > 5);
  const rates = await page.$eval('[data-rule="per-user"] svg', (svg) => svg.getAttribute("aria-label"));
  assert.match(rates, /^[\d.]+ admitted, [\d.]+ refused, 0\.0 refused in the shadow a second$/);
  assert.match(await text('[data-rule="planned"]'), /refused in the shadow/);

  // Who is refused most, and what the shadow would refuse.
  await until(() => document.querySelector("#refused button")?.textContent === "mallory");
  await until(() => document.querySelector("#shadow-refused button")?.textContent === "mallory");

  // Explained: refused, and when it passes.
  await page.click("#refused button");
  await until(() => document.querySelector('#standings [data-rule="per-user"] .waits'));
  assert.match(await text('#standings [data-rule="per-user"]'), /passes in (1 d|23 h)/);
  load = false;
  await pressing;

  // A key that passes is blocked, is refused, and is let in again.
  assert.equal(await ask("guest"), 200);
  await page.$eval("#key", (key) => { key.value = ""; });
  await page.type("#key", "guest");
  await page.keyboard.press("Enter");
  await until(() => document.querySelector('#standings [data-rule="per-user"] .passes'));
  await page.click('#standings [data-rule="per-user"] [data-change="block"]');
  await until(() => document.getElementById("message").textContent.includes("blocked"));
  assert.match(await text('#standings [data-rule="per-user"]'), /blocked for (1 h|59 min)/);
  assert.equal(await ask("guest"), 429);
  const focused = await page.evaluate(() => document.activeElement.dataset.change);
  assert.equal(focused, "unblock", "the keyboard goes on where it was");
  await page.keyboard.press("Enter");
  await until(() => document.getElementById("message").textContent.includes("let in again"));
  assert.equal(await ask("guest"), 200);
  // And the one that had used all is reset.
  await page.$eval("#key", (key) => { key.value = ""; });
  await page.type("#key", "mallory");
  await page.keyboard.press("Enter");
  await until(() => document.querySelector('#standings [data-rule="per-user"] .waits'));
  assert.equal(await ask("mallory"), 429);
  await page.click('#standings [data-rule="per-user"] [data-change="reset"]');
  await until(() => document.querySelector('#standings [data-rule="per-user"] .passes'));
  assert.equal(await ask("mallory"), 200);

  // A key is text, whatever is in it.
  await page.$eval("#key", (key) => { key.value = "<img src=x onerror=alert(1)>"; });
  await page.focus("#key");
  await page.keyboard.press("Enter");
  await until(() => document.getElementById("explained-title").textContent.includes("onerror"));
  assert.equal(await page.$("img"), null);

  // As it looks: nothing wider than the page, on a desk and on a phone, in light and in dark.
  await page.$eval("#key", (key) => { key.value = "mallory"; });
  await page.focus("#key");
  await page.keyboard.press("Enter");
  await until(() => document.getElementById("explained-title").textContent.includes("mallory"));
  load = true;
  const more = press();
  mkdirSync(shots, { recursive: true });
  for (const [name, width, height] of [["desktop", 1200, 900], ["phone", 375, 812]]) {
    for (const scheme of ["light", "dark"]) {
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      await page.setViewport({ width, height, isMobile: name === "phone", hasTouch: name === "phone" });
      // A phone's page is loaded anew.
      await until(() => document.querySelector("#refused button"));
      await page.click("#refused button");
      await until(() => !document.getElementById("explained").hidden);
      await new Promise((resolve) => setTimeout(resolve, 4_500));
      await page.evaluate(() => window.scrollTo(0, 0));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${name}: ${wide} pixels wide`);
      const paper = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(paper === "rgb(255, 255, 255)", scheme === "light", paper);
      await page.screenshot({ path: join(shots, `${name}-${scheme}.png`), fullPage: true });
    }
  }
  load = false;
  await more;

  // The token goes when it is told to.
  await page.click("#leave");
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  assert.equal(await page.$eval("#desk", (desk) => desk.hidden), true);
  assert.deepEqual(complaints, []);
  assert.deepEqual(foreign, []);
} catch (error) {
  failed = error;
} finally {
  load = false;
  await browser.close();
  server.kill();
}
if (failed) throw failed;
console.log("the operators' page: clicked through");
