// The canvas: an image with two layers over it, moved and zoomed.

export class View {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.image = null;
    this.model = null; // Layer of what the model says
    this.labels = null; // Layer of what is painted
    this.showModel = this.showLabels = true;
    this.opacity = 0.55;
    this.scale = 1;
    this.left = this.top = 0;
    this.marks = () => {}; // draws cursors and lines that are under way
    this.waiting = false;
    new ResizeObserver(() => this.#resize()).observe(canvas);
  }

  show(image, labels) {
    this.image = image;
    this.labels = labels;
    this.model = null;
    this.fit();
  }

  fit() {
    if (!this.image) return;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.scale = Math.min((width - 24) / this.image.width, (height - 24) / this.image.height);
    this.left = (width - this.image.width * this.scale) / 2;
    this.top = (height - this.image.height * this.scale) / 2;
    this.redraw();
  }

  // Zooms around a point of the screen, the middle if left out.
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = Math.min(40, Math.max(0.02, this.scale * factor));
    this.left = x - ((x - this.left) * scale) / this.scale;
    this.top = y - ((y - this.top) * scale) / this.scale;
    this.scale = scale;
    this.redraw();
  }

  move(dx, dy) {
    this.left += dx;
    this.top += dy;
    this.redraw();
  }

  // From the screen to the image.
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left - this.left) / this.scale, y: (event.clientY - box.top - this.top) / this.scale };
  }

  // From the image to the screen.
  place(point) {
    return { x: point.x * this.scale + this.left, y: point.y * this.scale + this.top };
  }

  isInside(point) {
    return this.image && point.x >= 0 && point.y >= 0 && point.x < this.image.width && point.y < this.image.height;
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#draw();
    });
  }

  #resize() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * ratio), height = Math.round(this.canvas.clientHeight * ratio);
    if (this.canvas.width === width && this.canvas.height === height) return;
    this.canvas.width = width;
    this.canvas.height = height;
    this.fit();
  }

  #draw() {
    const ratio = window.devicePixelRatio || 1, { context } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.image) return;
    context.setTransform(ratio * this.scale, 0, 0, ratio * this.scale, ratio * this.left, ratio * this.top);
    context.imageSmoothingEnabled = this.scale < 3;
    context.drawImage(this.image, 0, 0);
    context.imageSmoothingEnabled = false;
    if (this.model && this.showModel) {
      context.globalAlpha = this.opacity;
      context.drawImage(this.model.canvas, 0, 0);
    }
    if (this.labels && this.showLabels) {
      context.globalAlpha = Math.min(1, 0.35 + this.opacity);
      context.drawImage(this.labels.canvas, 0, 0);
    }
    context.globalAlpha = 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.marks(context);
  }
}
