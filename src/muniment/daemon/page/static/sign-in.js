// Signs in with the code behind `#`, which leaves the address before anything else happens.
const code = location.hash.slice(1);
const view = location.pathname + location.search;
const form = document.getElementById("sign-in");
form.elements.to.value = view;
document.getElementById("go-on").href = view;
if (code) {
  history.replaceState(null, "", view);
  form.elements.code.value = code;
  form.requestSubmit();
}
