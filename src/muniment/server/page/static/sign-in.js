// Signs in with the code after `#`, which is removed from the address first.
function signIn() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.getElementById("sign-in");
  form.elements.code.value = code;
  form.requestSubmit();
}

signIn();
addEventListener("hashchange", signIn); // The address from `muniment ui` may differ from the current one only in the code.
