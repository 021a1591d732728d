// The example of the start page: a button shows the scene after that many labels.
for (const button of document.querySelectorAll("#example button")) {
  button.addEventListener("click", () => {
    const image = document.getElementById("example-image");
    image.src = image.src.replace(/start-\d+\.jpg$/, button.dataset.image);
    document.getElementById("example-text").textContent = button.dataset.text;
    for (const other of document.querySelectorAll("#example button")) {
      other.classList.toggle("chosen", other === button);
    }
  });
}
